_base_ = 'data_224.py'
train_pipeline = _base_.train_pipeline
train_pipeline[1].scale = 448
test_pipeline = _base_.test_pipeline
test_pipeline[1].scale = (512, 512)
test_pipeline[2].crop_size = 448
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
