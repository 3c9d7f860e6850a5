import timm


def get_backbone(args, pretrained=False):
    return timm.create_model(args["backbone_type"], pretrained=pretrained)
