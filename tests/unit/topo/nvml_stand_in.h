// The machine that the stand-in for NVIDIA's libnvidia-ml.so.1 plays.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

enum nvml_play {
  NVML_PLAY_SWITCH,  // two GPUs, each with 18 links of NVLink 4 to a switch, one of them down
  // two GPUs with four links of NVLink 3 to each other, and one each to a GPU that is not to be
  // seen
  NVML_PLAY_BRIDGE,
  NVML_PLAY_NO_DRIVER  // a library whose driver is not loaded
};
void nvml_play(enum nvml_play play);
int nvml_times_open(void);  // nvmlInit_v2() less nvmlShutdown()

#ifdef __cplusplus
}
#endif
