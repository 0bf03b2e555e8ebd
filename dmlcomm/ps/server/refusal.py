"""How a server says no: a gRPC code and a text for people. The service turns it into the answer."""

import grpc


class Refusal(Exception):  # noqa: N818, not an error of the server
    """A request that is not carried out. The text says who, what, expected, actual, what to try."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


def not_found(text: str) -> Refusal:
    return Refusal(grpc.StatusCode.NOT_FOUND, text)


def taken(text: str) -> Refusal:
    return Refusal(grpc.StatusCode.ALREADY_EXISTS, text)


def busy(text: str) -> Refusal:
    """It passes: the caller tries again."""
    return Refusal(grpc.StatusCode.ABORTED, text)


def failed(text: str) -> Refusal:
    return Refusal(grpc.StatusCode.FAILED_PRECONDITION, text)


def illegal(text: str) -> Refusal:
    return Refusal(grpc.StatusCode.INVALID_ARGUMENT, text)
