"""These tests need PyTorch, which nothing else imports: they are collected with `-m torch` only."""


def pytest_ignore_collect(collection_path, config):
    wanted = config.getoption("markexpr")
    if collection_path.suffix == ".py" and ("torch" not in wanted or "not torch" in wanted):
        return True
    return None
