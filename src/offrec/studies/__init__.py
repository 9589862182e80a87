"""Studies: many runs, asked together, worked off by whoever is free, and read as tables and pictures.

    STUDY/study.json             what is asked: logs with their fingerprints, policies with all their options, seeds
    STUDY/runs/<run>/            each run as `offrec train` leaves it
    STUDY/results/<run>.json     what came of it, and beside it <run>.ranks.npy and <run>.rewards.npy
    STUDY/failed/<run>.json      or why nothing came of it
    STUDY/locks/<run>.lock       who works on it holds this file's lock; the system frees it when they die

Asking (`asking`, `tuning`) writes study.json; working (`work`, `python -m offrec.studies STUDY`) needs torch, numpy and
safetensors only; reading (`reading` and what builds on it) needs the results alone, not the runs.
"""
