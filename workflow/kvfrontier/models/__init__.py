"""Loading models: safetensors only, remote code off unless the entry says so."""
