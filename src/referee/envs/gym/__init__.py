"""Any environment of Gymnasium under the vector-env contract."""
