"""Which events are genuine.

`authenticity` makes and compares tags; `keys` are the system's, and says who has them; `inspection` judges at a client what the
broker brings before it arrives.
"""
