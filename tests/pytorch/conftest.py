"""These tests need PyTorch, which nothing else imports: they are collected with `-m torch` only."""


def pytest_ignore_collect(collection_path, config):
    if collection_path.suffix == ".py" and "not torch" in config.getoption("markexpr"):
        return True
    return None
