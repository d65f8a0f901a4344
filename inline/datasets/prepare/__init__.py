"""Check a copy of a public dataset and link it to where the configs expect it.

``imagenet``, ``coco`` and ``ade20k`` know what belongs to each dataset and return reports; ``inspection``
decodes images in several processes; ``run`` goes from a path to an exit code.
"""
