/* A stand-in for NVIDIA's libnvidia-ml.so.1, for the simulated cards 0 and 1: card 1 is in two slices.
   Signatures: https://docs.nvidia.com/deploy/nvml-api/ (nvml.h). A handle is a number here; 0 is none. */
#include <stdio.h>
#include <string.h>

enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };
typedef struct { unsigned long long total, free, used; } Memory;
static const struct { const char *uuid, *name; unsigned long long mib; int major, minor; } CARDS[] = {
    {0, 0, 0, 0, 0},
    {"GPU-00000000-0000-4000-8000-000000000000", "NVIDIA TITAN V", 12066, 7, 0},
    {"GPU-00000001-0000-4000-8000-000000000000", "NVIDIA A100-SXM4-40GB", 40960, 8, 0},
    {"MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", 19968, 8, 0},
    {"MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4864, 8, 0},
};

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, long *device) { *device = index + 1; return SUCCESS; }
int nvmlDeviceGetUUID(long device, char *text, unsigned most) {
    snprintf(text, most, "%s", CARDS[device].uuid);
    return SUCCESS;
}
int nvmlDeviceGetName(long device, char *text, unsigned most) {
    snprintf(text, most, "%s", CARDS[device].name);
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(long device, Memory *memory) {
    memset(memory, 0, sizeof *memory);
    memory->total = CARDS[device].mib << 20;
    return SUCCESS;
}
int nvmlDeviceGetCudaComputeCapability(long device, int *major, int *minor) {
    *major = CARDS[device].major;
    *minor = CARDS[device].minor;
    return SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(long device, unsigned *count) {
    *count = device == 2 ? 7 : 0;
    return SUCCESS;
}
int nvmlDeviceGetMigDeviceHandleByIndex(long device, unsigned index, long *slice) {
    if (device != 2) return INVALID;
    if (index != 0 && index != 3) return NOT_FOUND; /* places that no slice has */
    *slice = index == 0 ? 3 : 4;
    return SUCCESS;
}
