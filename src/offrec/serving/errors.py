"""A request that is answered with a sentence instead of what it asked for."""


class RequestError(Exception):
    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence
