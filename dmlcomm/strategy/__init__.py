"""How to train a model on a cluster: ``dmlcomm strategy`` simulates candidates, and ranks them."""
