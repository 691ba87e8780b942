"""The parts of the campaign: each attacks one side of Referee and hands back a `Tally`."""
