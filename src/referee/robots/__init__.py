"""Arms, cameras and input devices, real ones and their twins, behind small protocols."""
