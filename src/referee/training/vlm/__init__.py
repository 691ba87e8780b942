"""Fine-tuning vision-language models on windows."""
