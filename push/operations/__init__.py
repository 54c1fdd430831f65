"""What every transport does alike: checks, settling, acks that publish."""
