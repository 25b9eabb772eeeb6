"""How fast a gang's collectives are: what runs on the ranks (``ranks/``), and what is made of their figures."""
