"""Check a copy of a public dataset and link it to where the configs expect it.

``imagenet``, ``coco``, ``ade20k`` and ``tiny_imagenet`` define the content of each dataset and return
reports; ``inspection`` decodes images in several processes; ``run`` checks a path and creates the link."""
