"""Generated retrieval tasks: recall, ABCDigits, MQAR and passkey."""
