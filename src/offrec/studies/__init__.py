"""Studies: plan many runs, execute them from a shared queue, and store their results.

A study is a folder:

    STUDY/study.json             the plan: datasets with fingerprints, policies with all options, seeds
    STUDY/runs/<run>/            one run folder per run, as written by `offrec train`
    STUDY/results/<run>.json     metrics, learning curve, time and machine, with <run>.ranks.npy and <run>.rewards.npy
    STUDY/failed/<run>.json      the reason why a run failed
    STUDY/locks/<run>.lock       locked by the process that executes the run; freed when that process ends

`design` and `tuning` write study.json. `worker` executes runs and needs torch, numpy and safetensors only
(`python -m offrec.studies STUDY`). `offrec.reports` reads study.json and the results, not the runs.
"""
