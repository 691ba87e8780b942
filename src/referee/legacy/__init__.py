"""What RLinf's reward-model guides name: classes (`referee.compat`) and a command line, translated to ours."""
