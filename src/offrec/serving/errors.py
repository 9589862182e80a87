"""Errors that the server returns to a client as one sentence."""


class RequestError(Exception):
    """Error that rejects a request with an HTTP status and a sentence for the client.

    Args:
        status: The HTTP status code, from 400 upwards.
        sentence: What was received, what was expected and what to do.
    """

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence
