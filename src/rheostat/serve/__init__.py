"""A server over a bundle: a budget per request, and less compute per request as load rises. No torch here."""
