// The machine that the stand-in for NVIDIA's libnvidia-ml.so.1 plays.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

enum nvml_play {
  NVML_PLAY_SWITCH,  // two GPUs, each with 18 links of NVLink 4 to a switch, one of them down
  // Two GPUs have four links of NVLink 3 to each other, and each has one to a GPU that this process
  // does not see.
  NVML_PLAY_BRIDGE,
  NVML_PLAY_NO_DRIVER  // a library whose driver is not loaded
};
void nvml_play(enum nvml_play play);
int nvml_times_open(void);  // calls of nvmlInit_v2() minus calls of nvmlShutdown()

#ifdef __cplusplus
}
#endif
