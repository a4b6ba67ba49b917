// rm.c - learns the channel groups (TSGs) of this process from the ioctls with which libcuda makes them, and whether others share them.
//
// Structures and numbers: NVIDIA open-gpu-kernel-modules, nvos.h, nv_escape.h, class/cla06c.h. Controls
// are accepted only on the nvidiactl file that libcuda opened: the resource manager compares the open
// file, not the process, so the file descriptor is part of what is learnt.
#define _GNU_SOURCE
#include "preempt/process/process.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum {
	NV_ESC_RM_FREE = 0x29,
	NV_ESC_RM_CONTROL = 0x2A,
	NV_ESC_RM_ALLOC = 0x2B,
	NV_ESC_IOCTL_XFER_CMD = 211,
	NV20_SUBDEVICE_0 = 0x2080,
	KEPLER_CHANNEL_GROUP_A = 0xA06C,
	NV2080_ENGINE_TYPE_GR0 = 1,
	NVA06C_CTRL_CMD_GPFIFO_SCHEDULE = 0xa06c0101, // ctrl/ctrla06c.h
	NVA06C_CTRL_CMD_SET_TIMESLICE = 0xa06c0103,
	NV2080_CTRL_CMD_GPU_GET_GID_INFO = 0x2080014a, // ctrl/ctrl2080/ctrl2080gpu.h
	NV2080_CTRL_CMD_GPU_GET_PID_INFO = 0x2080018e,
	GID_FORMAT_BINARY = 2,        // NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY
	MOST_PIDS = 200,              // NV2080_CTRL_GPU_GET_PID_INFO_MAX_COUNT
	NV_ERR_INVALID_CLIENT = 0x23, // nvstatuscodes.h
};
enum { TSGS = 64, SUBDEVICES = 64, CHANNELS = 512 };

typedef struct {
	uint32_t hRoot, hObjectParent, hObjectNew, hClass;
	uint64_t pAllocParms;
	uint32_t paramsSize, status;
} NVOS21_PARAMETERS;
typedef struct {
	uint32_t hRoot, hObjectParent, hObjectNew, hClass;
	uint64_t pAllocParms, pRightsRequested;
	uint32_t paramsSize, flags, status, Pad0;
} NVOS64_PARAMETERS;
typedef struct {
	uint32_t hClient, hObject, cmd, flags;
	uint64_t params;
	uint32_t paramsSize, status;
} NVOS54_PARAMETERS;
typedef struct { uint32_t hRoot, hObjectParent, hObjectOld, status; } NVOS00_PARAMETERS;
typedef struct {
	uint32_t cmd, size;
	uint64_t ptr;
} nv_ioctl_xfer_t;
typedef struct {
	uint32_t hObjectError, hObjectEccError, hVASpace, engineType;
	uint8_t bIsCallingContextVgpuPlugin, Pad0[3];
} NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS;
typedef struct {
	uint32_t index, flags, length;
	uint8_t data[256];
} NV2080_CTRL_GPU_GET_GID_INFO_PARAMS;
typedef struct {
	uint32_t pidInfoListCount, Pad0;
	struct {
		uint32_t pid, index, result, Pad0; // index 0: video memory
		uint64_t memPrivate, memSharedOwned, memSharedDuped, protectedMem[3];
		uint32_t computeInstanceId, gpuInstanceId;
	} pidInfoList[MOST_PIDS];
} NV2080_CTRL_GPU_GET_PID_INFO_PARAMS;

_Static_assert(sizeof(NVOS21_PARAMETERS) == 32, "nvos.h");
_Static_assert(sizeof(NVOS64_PARAMETERS) == 48, "nvos.h");
_Static_assert(sizeof(NVOS54_PARAMETERS) == 32, "nvos.h");
_Static_assert(sizeof(NVOS00_PARAMETERS) == 16, "nvos.h");
_Static_assert(sizeof(nv_ioctl_xfer_t) == 16, "nv-ioctl.h");
_Static_assert(sizeof(NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS) == 20, "nvos.h");
_Static_assert(sizeof(NV2080_CTRL_GPU_GET_GID_INFO_PARAMS) == 268, "ctrl2080gpu.h");
_Static_assert(sizeof(NV2080_CTRL_GPU_GET_PID_INFO_PARAMS) == 14408, "ctrl2080gpu.h");

struct object {
	int fd;
	uint32_t client, parent, handle, engine, compute, resets, suspended;
	uint64_t born_ns, made_ns, changed_ns;
}; // compute: of a channel, too; suspended: on GPU + 1

// Volatile: libc declares that ioctl calls nothing of this file back, but it is our own ioctl that is called.
static __thread volatile bool own_control __attribute__((tls_model("initial-exec")));
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // object creation only, never on the launch path
static uint32_t born;                                    // under lock
static struct object tsgs[TSGS], subdevices[SUBDEVICES], channels[CHANNELS];

static void add(struct object *table, int size, struct object o)
{
	int at = -1;
	for (int i = 0; i < size; i++) {
		if (table[i].handle && table[i].client == o.client && table[i].handle == o.handle) {
			at = i; // its file was closed, which frees it without a word
			break;
		}
		if (!table[i].handle && at < 0)
			at = i;
	}
	if (at >= 0)
		table[at] = o;
}

static bool drop(struct object *table, int size, uint32_t client, uint32_t handle)
{
	bool dropped = false;
	for (int i = 0; i < size; i++)
		if (table[i].handle && table[i].client == client &&
		    (table[i].handle == handle || table[i].parent == handle || handle == client)) {
			table[i].handle = 0;
			dropped = true;
		}
	return dropped;
}

// Whether an object is a TSG that computes, or one of those goes with it.
static bool has_compute(uint32_t client, uint32_t handle)
{
	for (int t = 0; t < TSGS; t++) {
		const struct object *o = &tsgs[t];
		if (o->handle && o->compute && o->client == client &&
		    (o->handle == handle || o->parent == handle || handle == client))
			return true;
	}
	return false;
}

static void changed_tsg(uint32_t client, uint32_t handle)
{
	for (int t = 0; t < TSGS; t++) {
		struct object *o = &tsgs[t];
		if (o->handle != handle || o->client != client)
			continue;
		o->changed_ns = gp_now_ns();
		if (!(o->resets & 0xffff)) // one that libcuda has scheduled may get a channel at any time
			o->made_ns = o->changed_ns;
	}
}

static bool allocated(int fd, const NVOS21_PARAMETERS *a)
{
	struct object o = {.fd = fd, .client = a->hRoot, .parent = a->hObjectParent, .handle = a->hObjectNew};
	uint32_t class = a->hClass;

	if (class == NV20_SUBDEVICE_0) {
		add(subdevices, SUBDEVICES, o);
		return false;
	}
	if (class == KEPLER_CHANNEL_GROUP_A) {
		const NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS *p = (const void *)(uintptr_t)a->pAllocParms;
		o.engine = p ? p->engineType : 0;
		if (o.engine != NV2080_ENGINE_TYPE_GR0) // a copy engine's
			return false;
		o.resets = born += 1u << 16; // a handle may be used again: never for what looks like the same TSG
		o.born_ns = o.made_ns = o.changed_ns = gp_now_ns();
		add(tsgs, TSGS, o);
		return true;
	}
	if (class >= 0xC000 && (class & 0xFF) == 0x6F) { // GPFIFO channels: C36F Volta .. CA6F Blackwell
		add(channels, CHANNELS, o);
		changed_tsg(o.client, o.parent);
		return true;
	}
	if (class >= 0xC000 && (class & 0xFF) == 0xC0) { // compute objects: C3C0 .. CEC0, under a channel
		for (int i = 0; i < CHANNELS; i++) {
			if (channels[i].client != o.client || channels[i].handle != o.parent)
				continue;
			channels[i].compute = 1;
			for (int t = 0; t < TSGS; t++)
				if (tsgs[t].client == o.client && tsgs[t].handle == channels[i].parent)
					tsgs[t].compute = 1;
		}
		return true;
	}
	return false;
}

// libcuda's own control of a TSG may undo ours: the thread that set a timeslice sets it again.
static bool controlled(const NVOS54_PARAMETERS *c)
{
	bool found = false;

	if (own_control || c->status ||
	    (c->cmd != NVA06C_CTRL_CMD_SET_TIMESLICE && c->cmd != NVA06C_CTRL_CMD_GPFIFO_SCHEDULE))
		return false;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < TSGS; i++)
		if (tsgs[i].handle == c->hObject && tsgs[i].client == c->hClient) {
			tsgs[i].resets++;
			tsgs[i].made_ns = tsgs[i].changed_ns = gp_now_ns();
			found = true;
		}
	pthread_mutex_unlock(&lock);
	return found;
}

void gp_rm_ioctl(int fd, unsigned long request, void *argument)
{
	uint32_t number = _IOC_NR(request), size = _IOC_SIZE(request);
	bool changed = false, gone = false;

	if (number == NV_ESC_IOCTL_XFER_CMD && size == sizeof(nv_ioctl_xfer_t)) {
		const nv_ioctl_xfer_t *x = argument;
		number = x->cmd;
		size = x->size;
		argument = (void *)(uintptr_t)x->ptr;
	}
	if (!argument)
		return;
	if (number == NV_ESC_RM_CONTROL && size == sizeof(NVOS54_PARAMETERS)) {
		changed = controlled(argument);
	} else if (number == NV_ESC_RM_ALLOC && (size == sizeof(NVOS21_PARAMETERS) || size == sizeof(NVOS64_PARAMETERS))) {
		const NVOS21_PARAMETERS *a = argument; // both begin alike
		uint32_t status = size == sizeof *a ? a->status : ((const NVOS64_PARAMETERS *)argument)->status;
		if (status)
			return;
		pthread_mutex_lock(&lock);
		changed = allocated(fd, a);
		pthread_mutex_unlock(&lock);
	} else if (number == NV_ESC_RM_FREE && size == sizeof(NVOS00_PARAMETERS)) {
		const NVOS00_PARAMETERS *f = argument;
		if (f->status)
			return;
		pthread_mutex_lock(&lock);
		gone = has_compute(f->hRoot, f->hObjectOld); // others come and go with parts of contexts
		changed = drop(tsgs, TSGS, f->hRoot, f->hObjectOld);
		drop(channels, CHANNELS, f->hRoot, f->hObjectOld);
		drop(subdevices, SUBDEVICES, f->hRoot, f->hObjectOld);
		pthread_mutex_unlock(&lock);
	}
	if (changed)
		gp_notify();
	if (gone && !gp_contexts_ending)
		gp_membership_doubt(true);
}

// Whether this process has compute channels, all of them in TSGs that it allocated. No other process has such a TSG: NV_ESC_RM_ALLOC
// makes a new one each time, and only NV_ESC_RM_DUP_OBJECT shares one (kchangrpapiConstruct of 535, 550 and 595).
static bool has_own_tsgs(void)
{
	uint32_t own = 0, all = 0;

	pthread_mutex_lock(&lock);
	for (int c = 0; c < CHANNELS; c++) {
		if (!channels[c].handle || !channels[c].compute)
			continue;
		all++;
		for (int t = 0; t < TSGS; t++)
			if (tsgs[t].handle == channels[c].parent && tsgs[t].client == channels[c].client) {
				own++;
				break;
			}
	}
	pthread_mutex_unlock(&lock);
	return all && own == all;
}

uint32_t gp_rm_channels(void)
{
	uint32_t most = 0;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < CHANNELS; i++) {
		uint32_t count = 0;
		for (int c = 0; c < CHANNELS && channels[i].handle && channels[i].compute; c++)
			count += channels[c].handle && channels[c].compute &&
				 channels[c].client == channels[i].client && channels[c].parent == channels[i].parent;
		most = count > most ? count : most;
	}
	pthread_mutex_unlock(&lock);
	return most;
}

bool gp_under_mps(CUdevice device)
{
	int under = 0; // stays so where the driver does not know the attribute
	gp_driver.cuDeviceGetAttribute(&under, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, device);
	return under && !has_own_tsgs();
}

uint32_t gp_rm_tsgs(struct gp_tsg *out, uint32_t capacity)
{
	uint32_t count = 0;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < TSGS; i++) {
		const struct object *t = &tsgs[i];
		if (!t->handle || t->engine != NV2080_ENGINE_TYPE_GR0 || !t->compute)
			continue;
		if (count < capacity) {
			struct gp_tsg *o = &out[count];
			memset(o, 0, sizeof *o);
			*o = (struct gp_tsg){.fd = t->fd,
					     .client = t->client,
					     .handle = t->handle,
					     .device = t->parent,
					     .engine = t->engine,
					     .compute = t->compute,
					     .resets = t->resets,
					     .born_ns = t->born_ns,
					     .made_ns = t->made_ns,
					     .changed_ns = t->changed_ns,
					     .suspended_on = (int)t->suspended - 1};
			for (int s = 0; s < SUBDEVICES; s++)
				if (subdevices[s].handle && subdevices[s].client == t->client &&
				    subdevices[s].parent == t->parent)
					o->subdevice = subdevices[s].handle;
			for (int c = 0; c < CHANNELS && o->channels < 64; c++)
				if (channels[c].handle && channels[c].client == t->client && channels[c].parent == t->handle)
					o->channel[o->channels++] = channels[c].handle;
		}
		count++;
	}
	pthread_mutex_unlock(&lock);
	return count;
}

void gp_rm_suspended(uint32_t client, uint32_t handle, int gpu)
{
	pthread_mutex_lock(&lock);
	for (int t = 0; t < TSGS; t++)
		if (tsgs[t].handle == handle && tsgs[t].client == client)
			tsgs[t].suspended = (uint32_t)(gpu + 1);
	pthread_mutex_unlock(&lock);
}

// A checkpoint may close the file of the resource manager, which frees all without a word.
static void forget_client(uint32_t client)
{
	pthread_mutex_lock(&lock);
	bool gone = drop(tsgs, TSGS, client, client);
	drop(channels, CHANNELS, client, client);
	drop(subdevices, SUBDEVICES, client, client);
	pthread_mutex_unlock(&lock);
	if (gone)
		gp_membership_doubt(true);
}

// Returns the RM status, or -1 when the ioctl itself failed.
int gp_rm_control(int fd, uint32_t client, uint32_t object, uint32_t command, void *parameters, uint32_t size)
{
	NVOS54_PARAMETERS p = {
		.hClient = client, .hObject = object, .cmd = command, .params = (uintptr_t)parameters, .paramsSize = size};
	own_control = true;
	int failed = ioctl(fd, _IOWR('F', NV_ESC_RM_CONTROL, NVOS54_PARAMETERS), &p);
	own_control = false;
	if (failed < 0 ? errno == EBADF || errno == ENOTTY : p.status == NV_ERR_INVALID_CLIENT)
		forget_client(client);
	return failed < 0 ? -1 : (int)p.status;
}

static bool is_of_gpu(const struct gp_tsg *t, const struct gp_gpu *g)
{
	NV2080_CTRL_GPU_GET_GID_INFO_PARAMS p = {.flags = GID_FORMAT_BINARY};
	return !gp_rm_control(t->fd, t->client, t->subdevice, NV2080_CTRL_CMD_GPU_GET_GID_INFO, &p, sizeof p) &&
	       !memcmp(p.data, g->whole, sizeof g->whole);
}

// RM counts imported memory for the process that made it, while that lives.
static uint64_t memory_by(const struct gp_tsg *t, NV2080_CTRL_GPU_GET_PID_INFO_PARAMS *p)
{
	uint64_t bytes;
	p->pidInfoListCount = 1;
	p->pidInfoList->pid = (uint32_t)getpid();
	bool fails = gp_rm_control(t->fd, t->client, t->subdevice, NV2080_CTRL_CMD_GPU_GET_PID_INFO, p, sizeof *p) ||
		     p->pidInfoList->result ||
		     __builtin_add_overflow(p->pidInfoList->memPrivate, p->pidInfoList->memSharedOwned, &bytes);
	return fails ? 0 : bytes;
}

// Asks by libcuda's clients: NVML and others have some of their own, which come and go.
uint64_t gp_rm_memory(const struct gp_gpu *g)
{
	struct {
		struct gp_tsg tsg[TSGS];
		NV2080_CTRL_GPU_GET_PID_INFO_PARAMS p;
	} *a = calloc(1, sizeof *a); // a thread's stack may lack room for it
	uint32_t count = a ? gp_rm_tsgs(a->tsg, TSGS) : 0;
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < count && i < TSGS && !bytes; i++)
		if (a->tsg[i].subdevice && is_of_gpu(&a->tsg[i], g))
			bytes = memory_by(&a->tsg[i], &a->p);
	free(a);
	return bytes;
}
