// A libcuda.so.1 for the tests of gpreempt doctor: one device, and what FAKE_CUDA asks for.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int asked(const char *what)
{
	const char *fake = getenv("FAKE_CUDA");
	return fake && strcmp(fake, what) == 0;
}

int cuInit(unsigned flags)
{
	(void)flags;
	if (asked("crash"))
		abort();
	return asked("no driver") ? 100 : 0;
}

int cuGetErrorString(int error, const char **text)
{
	*text = error == 100 ? "no CUDA-capable device is detected" : "another error";
	return 0;
}

int cuDriverGetVersion(int *version) { return *version = 13010, 0; }
int cuDeviceGetCount(int *count) { return *count = !asked("no device"), 0; }
int cuDeviceGet(int *device, int index) { return *device = index, 0; }
int cuDeviceGetUuid(char *uuid, int device) { return memset(uuid, 0x11 + device, 16), 0; }
int cuDeviceGetName(char *name, int size, int device) { return snprintf(name, size, "Simulated GPU %d", device), 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	(void)device;
	const char *fake = getenv("FAKE_CUDA");
	int sm = fake && strncmp(fake, "sm_", 3) == 0 ? atoi(fake + 3) : 90;
	switch (attribute) {
	case 20: // compute mode
		*value = asked("exclusive") ? 3 : 0;
		return 0;
	case 75: // compute capability
		*value = sm / 10;
		return 0;
	case 76: *value = sm % 10; return 0;
	case 102: // virtual memory management
		*value = 1;
		return asked("old driver") ? 1 : 0;
	}
	*value = 0;
	return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) { return (void)device, *bytes = (size_t)80 << 30, 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return (void)device, *context = "", 0; }
int cuCtxSetCurrent(void *context) { return (void)context, 0; }
int cuMemAlloc_v2(unsigned long long *memory, size_t size) { return (void)size, *memory = 4096, 0; }
int cuMemsetD8_v2(unsigned long long memory, unsigned char value, size_t n)
{
	return (void)memory, (void)value, (void)n, 0;
}
int cuCtxSynchronize(void) { return 0; }
