import importlib


def get_model(model_name, args):
    return importlib.import_module(f"models.{model_name}").LEARNER(args)
