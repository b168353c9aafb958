/* A stand-in for NVIDIA's libnvidia-ml.so.1: the functions that the library uses, and no GPU. */
#include "nvml_stand_in.h"

#include <stdio.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9 };
enum { REMOTE_GPU = 0, REMOTE_SWITCH = 2 };

struct device {
  const char* bus_id;
  unsigned bus;
} devices[] = {{"00000000:1B:00.0", 0x1b}, {"00000000:9D:00.0", 0x9d}};

struct memory {
  unsigned long long total, free, used;
};

struct pci {
  char old_bus_id[16];
  unsigned domain, bus, device, model, board;
  char bus_id[32];
};

static enum nvml_play playing;
static int times_open;

void nvml_play(enum nvml_play play) { playing = play; }
int nvml_times_open(void) { return times_open; }

static unsigned links(void) { return playing == NVML_PLAY_SWITCH ? 18 : 5; }

int nvmlInit_v2(void) {
  if (playing == NVML_PLAY_NO_DRIVER) return DRIVER_NOT_LOADED;
  times_open++;
  return SUCCESS;
}

int nvmlShutdown(void) {
  times_open--;
  return SUCCESS;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, struct device** device) {
  for (*device = devices; *device < devices + 2; ++*device)
    if (strcmp((*device)->bus_id, bus_id) == 0) return SUCCESS;
  return NOT_FOUND;
}

int nvmlDeviceGetName(struct device* device, char* name, unsigned capacity) {
  snprintf(name, capacity, "NVIDIA Stand-in %X", device->bus);
  return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(struct device* device, struct memory* memory) {
  (void)device;
  memory->total = 80ull << 30;
  return SUCCESS;
}

int nvmlDeviceGetNvLinkState(struct device* device, unsigned link, int* active) {
  if (link >= links()) return INVALID_ARGUMENT;
  *active = !(playing == NVML_PLAY_SWITCH && device == &devices[1] && link == 3);
  return SUCCESS;
}

int nvmlDeviceGetNvLinkVersion(struct device* device, unsigned link, unsigned* version) {
  (void)device;
  (void)link;
  *version = playing == NVML_PLAY_SWITCH ? 6 : 4;
  return SUCCESS;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(struct device* device, unsigned link, struct pci* remote) {
  memset(remote, 0, sizeof *remote);
  if (playing == NVML_PLAY_SWITCH)
    remote->bus = 0xc0 + link % 4;
  else
    remote->bus = link == 4 ? 0xee : devices[device == devices].bus;
  return SUCCESS;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(struct device* device, unsigned link, int* kind) {
  (void)device;
  (void)link;
  *kind = playing == NVML_PLAY_SWITCH ? REMOTE_SWITCH : REMOTE_GPU;
  return SUCCESS;
}
