// rm.c - the resource manager behind the simulated nvidiactl: objects, and controls on them.
//
// The driver above allocates its objects by calling ioctl() through the PLT, so that a preloaded interposer sees the same calls as of
// libcuda. The call ends up in ioctl() below, which answers for the simulated file and hands every other file to the kernel.
#define _GNU_SOURCE
#include "sim.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// nvos.h
typedef struct {
	uint32_t hRoot, hObjectParent, hObjectNew, hClass;
	uint64_t pAllocParms;
	uint32_t paramsSize, status;
} NVOS21_PARAMETERS;
typedef struct {
	uint32_t hRoot, hObjectParent, hObjectNew, hClass;
	uint64_t pAllocParms, pRightsRequested;
	uint32_t paramsSize, flags, status, pad;
} NVOS64_PARAMETERS;
typedef struct {
	uint32_t hClient, hObject, cmd, flags;
	uint64_t params;
	uint32_t paramsSize, status;
} NVOS54_PARAMETERS;
typedef struct { uint32_t hClient, hParent, hObject, hClientSrc, hObjectSrc, flags, status; } NVOS55_PARAMETERS;
typedef struct { uint32_t hRoot, hObjectParent, hObjectOld, status; } NVOS00_PARAMETERS;
// nv-ioctl.h
typedef struct {
	uint32_t cmd, size;
	uint64_t ptr;
} nv_ioctl_xfer_t;
// ctrl2080fifo.h
typedef struct {
	uint8_t bDisable, Pad0[3];
	uint32_t numChannels;
	uint8_t bOnlyDisableScheduling, bRewindGpPut, Pad1[6];
	uint64_t pRunlistPreemptEvent;
	uint32_t hClientList[64], hChannelList[64];
} NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS;
// ctrl2080gpu.h
typedef struct {
	uint32_t index, flags, length;
	uint8_t data[256];
} NV2080_CTRL_GPU_GET_GID_INFO_PARAMS;

typedef struct {
	uint32_t numConfigs;
	struct { uint32_t type, timeslice; } configList[32];
} NV2080_CTRL_GPU_GET_COMPUTE_POLICY_CONFIG_PARAMS;

typedef struct {
	uint32_t pidInfoListCount, pad;
	struct {
		uint32_t pid, index, result, pad;
		uint64_t memPrivate, memSharedOwned, memSharedDuped, protectedMem[3];
		uint32_t computeInstanceId, gpuInstanceId;
	} pidInfoList[200];
} NV2080_CTRL_GPU_GET_PID_INFO_PARAMS;

_Static_assert(sizeof(NVOS21_PARAMETERS) == 32, "NVOS21");
_Static_assert(sizeof(NVOS64_PARAMETERS) == 48, "NVOS64");
_Static_assert(sizeof(NVOS54_PARAMETERS) == 32, "NVOS54");
_Static_assert(sizeof(NVOS55_PARAMETERS) == 28, "NVOS55");
_Static_assert(sizeof(NVOS00_PARAMETERS) == 16, "NVOS00");
_Static_assert(sizeof(NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS) == 536, "DISABLE_CHANNELS");
_Static_assert(offsetof(NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS, hClientList) == 24, "DISABLE_CHANNELS");
_Static_assert(sizeof(NV2080_CTRL_GPU_GET_GID_INFO_PARAMS) == 268, "GID_INFO");
_Static_assert(sizeof(NV2080_CTRL_GPU_GET_COMPUTE_POLICY_CONFIG_PARAMS) == 260, "COMPUTE_POLICY");
_Static_assert(sizeof(NV2080_CTRL_GPU_GET_PID_INFO_PARAMS) == 14408, "PID_INFO");

enum { // nv-ioctl-numbers.h, nv_escape.h
	NV_ESC_RM_FREE = 0x29,
	NV_ESC_RM_CONTROL = 0x2A,
	NV_ESC_RM_ALLOC = 0x2B,
	NV_ESC_RM_DUP_OBJECT = 0x34,
	NV_ESC_IOCTL_XFER_CMD = 211,
};

enum { // classes
	NV01_ROOT_CLIENT = 0x41,
	NV01_DEVICE_0 = 0x80,
	NV20_SUBDEVICE_0 = 0x2080,
	KEPLER_CHANNEL_GROUP_A = 0xA06C,
};

enum { // nvstatuscodes.h
	NV_OK = 0,
	NV_ERR_INSUFFICIENT_RESOURCES = 0x1A,
	NV_ERR_INSUFFICIENT_PERMISSIONS = 0x1B,
	NV_ERR_INVALID_ARGUMENT = 0x1F,
	NV_ERR_INVALID_CHANNEL = 0x21,
	NV_ERR_INVALID_CLIENT = 0x23,
	NV_ERR_INVALID_OBJECT_HANDLE = 0x33,
	NV_ERR_INVALID_OBJECT_NEW = 0x34,
	NV_ERR_INVALID_OBJECT_PARENT = 0x36,
	NV_ERR_INVALID_PARAM_STRUCT = 0x3A,
	NV_ERR_NOT_SUPPORTED = 0x56,
};

#define OBJECTS 4096
struct object {
	uint32_t client, parent, handle, class;
	uint32_t engine;       // TSG
	int device, tsg;       // TSG of the compute engine: its slot, else -1
	bool disabled;         // channel
	uint64_t timeslice_us; // TSG
	bool unscheduled;      // TSG
};
struct rm_context { uint32_t tsg[4], shared[4]; }; // shared: as the MPS server has them

static pthread_mutex_t rm_lock = PTHREAD_MUTEX_INITIALIZER;
static struct object objects[OBJECTS];
static uint32_t next_handle = 0xc1d00001, next_object = 0x5c000001;
static int control_file = -1;
static dev_t control_dev;
static ino_t control_ino;
static uint32_t client, device_handle[8], subdevice_handle[8];
static uint32_t server, server_device[8]; // the MPS server's client, of another process
static int pending_tsg;                   // slot of the compute TSG that this thread's driver call is allocating
static pthread_mutex_t emit_lock = PTHREAD_MUTEX_INITIALIZER;
static __thread bool own_control; // the control that this thread sends is the driver's own, which is never refused

static struct object *find(uint32_t hClient, uint32_t handle)
{
	for (int i = 0; i < OBJECTS; i++)
		if (objects[i].handle && objects[i].handle == handle && objects[i].client == hClient)
			return &objects[i];
	return NULL;
}

static bool client_known(uint32_t handle) { return find(handle, handle) != NULL; }

static void free_takes(void)
{
	const char *e = getenv("SIMCUDA_FREE_US");
	long us = e && *e ? atol(e) : 0;
	struct timespec t = {us / 1000000, us % 1000000 * 1000};
	if (us)
		nanosleep(&t, NULL);
}

// ---- the effects of controls

bool rm_closes_only(void)
{
	const char *e = getenv("SIMCUDA_CLOSES_ONLY");
	return e && *e == '1';
}

static bool refuse_controls(void)
{
	const char *e = getenv("SIMCUDA_REFUSE_CONTROL");
	return e && *e && *e != '0';
}

struct setting {
	int tsg;
	uint64_t slice_ns;
	uint32_t off;
	bool preempt;
};

static void set_slice(struct engine *e, void *argument)
{
	const struct setting *s = argument;
	e->tsg[s->tsg].slice_ns = s->slice_ns;
}

static void set_off(struct engine *e, void *argument)
{
	const struct setting *s = argument;
	e->tsg[s->tsg].off = s->off;
}

static void end_slice(struct engine *e, void *argument)
{
	const struct setting *s = argument;
	uint64_t slice = e->tsg[s->tsg].slice_ns;
	if (e->current == s->tsg && e->granted > slice) { // as if its timeslice had just run out
		e->granted = e->at - slice;
		if (e->contended > e->granted)
			e->contended = e->granted;
	}
}

static void apply_runlist(struct object *tsg)
{
	if (tsg->tsg < 0)
		return;
	int channels = 0, disabled = 0;
	for (int i = 0; i < OBJECTS; i++)
		if (objects[i].handle && objects[i].client == tsg->client && objects[i].parent == tsg->handle) {
			channels++;
			disabled += objects[i].disabled;
		}
	struct setting s = {.tsg = tsg->tsg, .off = tsg->unscheduled || (channels && disabled == channels)};
	engine_update(tsg->device, set_off, &s, NULL);
	engine_ring(engine_bell(tsg->device, tsg->tsg));
}

static uint32_t disable_channels(const NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS *p)
{
	if (p->numChannels > 64 || p->pRunlistPreemptEvent)
		return NV_ERR_INVALID_ARGUMENT;
	for (uint32_t i = 0; i < p->numChannels; i++) {
		struct object *o = find(p->hClientList[i], p->hChannelList[i]);
		if (!o || o->class != machine.gpfifo_class)
			return NV_ERR_INVALID_CHANNEL;
	}
	for (uint32_t i = 0; i < p->numChannels; i++)
		find(p->hClientList[i], p->hChannelList[i])->disabled = p->bDisable != 0;
	for (int i = 0; i < OBJECTS; i++)
		if (objects[i].handle && objects[i].class == KEPLER_CHANNEL_GROUP_A)
			apply_runlist(&objects[i]);
	return NV_OK;
}

static uint32_t tsg_control(struct object *o, uint32_t cmd, void *p)
{
	struct setting s = {.tsg = o->tsg};
	switch (cmd) {
	case 0xa06c0103: // NVA06C_CTRL_CMD_SET_TIMESLICE
		memcpy(&o->timeslice_us, p, 8);
		s.slice_ns = o->timeslice_us > UINT64_MAX / 4000 ? UINT64_MAX / 4 : o->timeslice_us * 1000;
		if (o->tsg >= 0) {
			engine_update(o->device, set_slice, &s, NULL);
			engine_ring(engine_bell(o->device, o->tsg));
		}
		return NV_OK;
	case 0xa06c0104: // NVA06C_CTRL_CMD_GET_TIMESLICE
		memcpy(p, &o->timeslice_us, 8);
		return NV_OK;
	case 0xa06c0105: // NVA06C_CTRL_CMD_PREEMPT
		if (o->tsg >= 0)
			engine_update(o->device, end_slice, &s, NULL);
		return NV_OK;
	default: // 0xa06c0101, NVA06C_CTRL_CMD_GPFIFO_SCHEDULE
		o->unscheduled = *(uint8_t *)p == 0;
		apply_runlist(o);
		return NV_OK;
	}
}

static uint32_t gid_info(int device, NV2080_CTRL_GPU_GET_GID_INFO_PARAMS *p)
{
	if (p->index != 0 || !(p->flags & 2))
		return NV_ERR_NOT_SUPPORTED;
	sim_uuid_of(sim_part(device).gpu, -1, p->data); // also of a slice
	p->length = 16;
	return NV_OK;
}

// The policy of timeslices that people have set, of which nothing comes here.
static uint32_t compute_policy(NV2080_CTRL_GPU_GET_COMPUTE_POLICY_CONFIG_PARAMS *p)
{
	const char *e = getenv("SIMCUDA_TIMESLICE_PRESET");
	p->numConfigs = 1;
	p->configList[0].type = 0; // NV2080_CTRL_GPU_COMPUTE_POLICY_TIMESLICE
	p->configList[0].timeslice = e ? (uint32_t)atoi(e) : 0;
	return NV_OK;
}

// The simulated RM says nothing of other processes than the caller. Managed memory is a kernel client's, as on a GPU, and counts for none.
static uint32_t pid_info(int device, NV2080_CTRL_GPU_GET_PID_INFO_PARAMS *p)
{
	if (getenv("SIMCUDA_NO_PID_INFO"))
		return NV_ERR_NOT_SUPPORTED;
	if (!p->pidInfoListCount || p->pidInfoListCount > sizeof p->pidInfoList / sizeof *p->pidInfoList)
		return NV_ERR_INVALID_ARGUMENT;
	for (uint32_t i = 0; i < p->pidInfoListCount; i++) {
		uint64_t bytes = p->pidInfoList[i].pid == (uint32_t)getpid() ? memory_taken(device) : 0;
		p->pidInfoList[i].result = p->pidInfoList[i].index ? NV_ERR_INVALID_ARGUMENT : NV_OK;
		p->pidInfoList[i].memPrivate = bytes / 2;
		p->pidInfoList[i].memSharedOwned = bytes - bytes / 2; // what the kernel's clients have too
	}
	return NV_OK;
}

static const struct command {
	uint32_t cmd, class, size;
	bool privileged; // refused under SIMCUDA_REFUSE_CONTROL
} commands[] = {
	{0xa06c0101, KEPLER_CHANNEL_GROUP_A, 3, true}, {0xa06c0103, KEPLER_CHANNEL_GROUP_A, 8, true},
	{0xa06c0104, KEPLER_CHANNEL_GROUP_A, 8, true}, {0xa06c0105, KEPLER_CHANNEL_GROUP_A, 8, true},
	{0x2080110b, NV20_SUBDEVICE_0, 536, true},     {0x2080014a, NV20_SUBDEVICE_0, 268, false},
	{0x20800195, NV20_SUBDEVICE_0, 260, false},    {0x2080018e, NV20_SUBDEVICE_0, 14408, false},
};

static void control(NVOS54_PARAMETERS *a)
{
	const struct command *c = NULL;
	bool refuse = !own_control && refuse_controls();
	own_control = false;
	for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
		if (commands[i].cmd == a->cmd)
			c = &commands[i];
	pthread_mutex_lock(&rm_lock);
	struct object *o = find(a->hClient, a->hObject);
	if (!client_known(a->hClient))
		a->status = NV_ERR_INVALID_CLIENT;
	else if (!o)
		a->status = NV_ERR_INVALID_OBJECT_HANDLE;
	else if (!c || c->class != o->class)
		a->status = NV_ERR_NOT_SUPPORTED;
	else if (a->paramsSize != c->size || !a->params)
		a->status = NV_ERR_INVALID_PARAM_STRUCT;
	else if (c->privileged && refuse)
		a->status = NV_ERR_INSUFFICIENT_PERMISSIONS;
	else if (a->cmd == 0x2080110b)
		a->status = disable_channels((const void *)a->params);
	else if (a->cmd == 0x2080014a)
		a->status = gid_info(o->device, (void *)a->params);
	else if (a->cmd == 0x20800195)
		a->status = compute_policy((void *)a->params);
	else if (a->cmd == 0x2080018e)
		a->status = pid_info(o->device, (void *)a->params);
	else
		a->status = tsg_control(o, a->cmd, (void *)a->params);
	pthread_mutex_unlock(&rm_lock);
	struct timespec t = {0, (long)machine.control_ns};
	clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
}

// ---- objects

static uint32_t alloc(uint32_t hRoot, uint32_t parent, uint32_t *handle, uint32_t class, uint64_t params, uint32_t size)
{
	pthread_mutex_lock(&rm_lock);
	uint32_t status = NV_OK;
	struct object *o = NULL, *up = NULL;
	for (int i = 0; i < OBJECTS && !o; i++)
		if (!objects[i].handle)
			o = &objects[i];
	if (!o)
		status = NV_ERR_INSUFFICIENT_RESOURCES;
	else if (class != NV01_ROOT_CLIENT && !client_known(hRoot))
		status = NV_ERR_INVALID_CLIENT;
	else if (class != NV01_ROOT_CLIENT && !(up = find(hRoot, parent)))
		status = NV_ERR_INVALID_OBJECT_PARENT;
	else if (class == KEPLER_CHANNEL_GROUP_A && (!params || (size && size != 20)))
		status = NV_ERR_INVALID_PARAM_STRUCT;
	else if (*handle && find(hRoot, *handle))
		status = NV_ERR_INVALID_OBJECT_NEW;
	if (status == NV_OK) {
		if (!*handle)
			*handle = class == NV01_ROOT_CLIENT ? next_handle++ : next_object++;
		*o = (struct object){.client = class == NV01_ROOT_CLIENT ? *handle : hRoot,
				     .parent = parent,
				     .handle = *handle,
				     .class = class,
				     .tsg = -1,
				     .device = up ? up->device : 0};
		if (class == NV01_DEVICE_0 && params)
			o->device = (int)*(uint32_t *)params; // NV0080_ALLOC_PARAMETERS.deviceId
		if (class == KEPLER_CHANNEL_GROUP_A) {
			o->engine = ((uint32_t *)params)[3];
			bool compute = o->engine == machine.compute_engine;
			o->timeslice_us = compute ? machine.timeslice_us : machine.copy_timeslice_us;
			o->tsg = compute ? pending_tsg : -1;
		}
	}
	pthread_mutex_unlock(&rm_lock);
	return status;
}

// Another client's handle of an object. Only TSGs are shared so here.
static uint32_t duplicate(NVOS55_PARAMETERS *a)
{
	pthread_mutex_lock(&rm_lock);
	uint32_t status = NV_OK;
	struct object *o = NULL, *from = find(a->hClientSrc, a->hObjectSrc);
	for (int i = 0; i < OBJECTS && !o; i++)
		if (!objects[i].handle)
			o = &objects[i];
	if (!client_known(a->hClient) || !client_known(a->hClientSrc))
		status = NV_ERR_INVALID_CLIENT;
	else if (!find(a->hClient, a->hParent))
		status = NV_ERR_INVALID_OBJECT_PARENT;
	else if (!from || from->class != KEPLER_CHANNEL_GROUP_A)
		status = NV_ERR_INVALID_OBJECT_HANDLE;
	else if (a->hObject && find(a->hClient, a->hObject))
		status = NV_ERR_INVALID_OBJECT_NEW;
	else if (!o)
		status = NV_ERR_INSUFFICIENT_RESOURCES;
	if (status == NV_OK) {
		*o = *from;
		o->client = a->hClient;
		o->parent = a->hParent;
		o->handle = a->hObject = a->hObject ? a->hObject : next_object++;
		if (o->engine == machine.compute_engine)
			o->tsg = pending_tsg;
	}
	pthread_mutex_unlock(&rm_lock);
	return status;
}

static void forget(uint32_t hClient, uint32_t handle)
{ // an object and all below it
	for (int i = 0; i < OBJECTS; i++)
		if (objects[i].handle && objects[i].client == hClient && objects[i].parent == handle &&
		    objects[i].handle != handle)
			forget(hClient, objects[i].handle);
	struct object *o = find(hClient, handle);
	if (o)
		o->handle = 0;
}

static uint32_t release(uint32_t hClient, uint32_t handle)
{
	pthread_mutex_lock(&rm_lock);
	uint32_t status = NV_OK;
	if (!client_known(hClient))
		status = NV_ERR_INVALID_CLIENT;
	else if (!find(hClient, handle))
		status = NV_ERR_INVALID_OBJECT_HANDLE;
	else
		forget(hClient, handle);
	pthread_mutex_unlock(&rm_lock);
	return status;
}

static int answer(uint32_t number, uint32_t size, void *argument)
{
	if (number == NV_ESC_IOCTL_XFER_CMD && size == sizeof(nv_ioctl_xfer_t)) {
		const nv_ioctl_xfer_t *x = argument;
		if (x->cmd == NV_ESC_IOCTL_XFER_CMD) {
			errno = EINVAL;
			return -1;
		}
		return answer(x->cmd, x->size, (void *)x->ptr);
	}
	if (!argument) {
		errno = EFAULT;
		return -1;
	}
	if (number == NV_ESC_RM_ALLOC && size == sizeof(NVOS21_PARAMETERS)) {
		NVOS21_PARAMETERS *a = argument;
		a->status = alloc(a->hRoot, a->hObjectParent, &a->hObjectNew, a->hClass, a->pAllocParms, a->paramsSize);
	} else if (number == NV_ESC_RM_ALLOC && size == sizeof(NVOS64_PARAMETERS)) {
		NVOS64_PARAMETERS *a = argument;
		a->status = alloc(a->hRoot, a->hObjectParent, &a->hObjectNew, a->hClass, a->pAllocParms, a->paramsSize);
	} else if (number == NV_ESC_RM_DUP_OBJECT && size == sizeof(NVOS55_PARAMETERS)) {
		NVOS55_PARAMETERS *a = argument;
		a->status = duplicate(a);
	} else if (number == NV_ESC_RM_CONTROL && size == sizeof(NVOS54_PARAMETERS)) {
		control(argument);
	} else if (number == NV_ESC_RM_FREE && size == sizeof(NVOS00_PARAMETERS)) {
		NVOS00_PARAMETERS *a = argument;
		a->status = release(a->hRoot, a->hObjectOld);
		free_takes(); // the object is gone, and the caller does not know it yet
	} else {
		errno = EINVAL;
		return -1;
	}
	return 0;
}

API int ioctl(int fd, unsigned long request, ...)
{
	va_list ap;
	va_start(ap, request);
	void *argument = va_arg(ap, void *);
	va_end(ap);
	struct stat st;
	if (_IOC_TYPE(request) == 'F' && control_file >= 0 && fstat(fd, &st) == 0 && st.st_dev == control_dev &&
	    st.st_ino == control_ino)
		return answer(_IOC_NR(request), _IOC_SIZE(request), argument);
	return (int)syscall(SYS_ioctl, fd, request, argument);
}

// ---- the driver's side

static int send(uint32_t number, void *argument, uint32_t size)
{
	const char *e = getenv("SIMCUDA_WRAP211");
	if (e && *e == '1') {
		nv_ioctl_xfer_t x = {number, size, (uint64_t)argument};
		return ioctl(control_file, _IOWR('F', NV_ESC_IOCTL_XFER_CMD, nv_ioctl_xfer_t), &x);
	}
	return ioctl(control_file, _IOC(_IOC_READ | _IOC_WRITE, 'F', number, size), argument);
}

// old: with NVOS21, else with NVOS64. libcuda uses both.
static uint32_t emit_alloc(bool old, uint32_t parent, uint32_t class, void *params, uint32_t size)
{
	if (old) {
		NVOS21_PARAMETERS a = {.hRoot = client,
				       .hObjectParent = parent,
				       .hClass = class,
				       .pAllocParms = (uint64_t)params,
				       .paramsSize = size};
		return send(NV_ESC_RM_ALLOC, &a, sizeof a) == 0 && a.status == NV_OK ? a.hObjectNew : 0;
	}
	NVOS64_PARAMETERS a = {.hRoot = client,
			       .hObjectParent = parent,
			       .hClass = class,
			       .pAllocParms = (uint64_t)params,
			       .paramsSize = size};
	return send(NV_ESC_RM_ALLOC, &a, sizeof a) == 0 && a.status == NV_OK ? a.hObjectNew : 0;
}

// The MPS server makes a TSG in its process, unseen by this one. This one gets a handle of it.
static uint32_t emit_share(int device, void *params, uint32_t size, uint32_t *shared)
{
	NVOS55_PARAMETERS a = {.hClient = client, .hParent = device_handle[device], .hClientSrc = server};
	int tsg = pending_tsg;
	*shared = 0;
	pending_tsg = -1; // the engine has it by this process's handle
	uint32_t status = alloc(server, server_device[device], shared, KEPLER_CHANNEL_GROUP_A, (uint64_t)params, size);
	pending_tsg = tsg;
	a.hObjectSrc = *shared;
	return status == NV_OK && send(NV_ESC_RM_DUP_OBJECT, &a, sizeof a) == 0 && a.status == NV_OK ? a.hObject : 0;
}

static void emit_control(uint32_t object, uint32_t cmd, void *params, uint32_t size)
{
	NVOS54_PARAMETERS a = {
		.hClient = client, .hObject = object, .cmd = cmd, .params = (uint64_t)params, .paramsSize = size};
	own_control = true;
	send(NV_ESC_RM_CONTROL, &a, sizeof a);
	own_control = false;
}

int rm_open(void)
{
	control_file = memfd_create("nvidiactl", MFD_CLOEXEC);
	struct stat st;
	if (control_file < 0 || fstat(control_file, &st) != 0)
		return -1;
	control_dev = st.st_dev;
	control_ino = st.st_ino;
	client = emit_alloc(true, 0, NV01_ROOT_CLIENT, NULL, 0);
	for (int i = 0; i < sim_devices() && client; i++) {
		uint32_t device_params[14] = {(uint32_t)i}; // NV0080_ALLOC_PARAMETERS, 56 bytes
		uint32_t subdevice_params = 0;              // NV2080_ALLOC_PARAMETERS
		device_handle[i] = emit_alloc(true, client, NV01_DEVICE_0, device_params, sizeof device_params);
		subdevice_handle[i] = emit_alloc(false, device_handle[i], NV20_SUBDEVICE_0, &subdevice_params, 4);
	}
	if (sim_mps() && alloc(0, 0, &server, NV01_ROOT_CLIENT, 0, 0) == NV_OK)
		for (int i = 0; i < sim_devices(); i++) {
			uint32_t device_params[14] = {(uint32_t)i};
			alloc(server, server, &server_device[i], NV01_DEVICE_0, (uint64_t)device_params,
			      sizeof device_params);
		}
	return client ? 0 : -1;
}

struct rm_context *rm_context_create(int device, int tsg)
{
	struct rm_context *c = calloc(1, sizeof *c);
	if (!c)
		return NULL;
	pthread_mutex_lock(&emit_lock);
	pending_tsg = tsg;
	for (int i = 0; i < 4; i++) {
		uint32_t engine = i ? machine.copy_engine[i - 1] : machine.compute_engine;
		uint32_t params[5] = {0, 0, 0, engine, 0}; // NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS
		c->tsg[i] = sim_mps() ? emit_share(device, params, sizeof params, &c->shared[i]) :
					emit_alloc(false, device_handle[device], KEPLER_CHANNEL_GROUP_A, params,
						   sizeof params);
		for (int k = 0; k < (i ? 1 : sim_connections()); k++) {
			uint8_t channel_params[368] = {0}; // NV_CHANNEL_ALLOC_PARAMS
			uint32_t channel =
				emit_alloc(false, c->tsg[i], machine.gpfifo_class, channel_params, sizeof channel_params);
			if (!i)
				emit_alloc(true, channel, machine.compute_class, NULL, 0);
		}
		struct timespec allocation = {0, 2 * (long)machine.control_ns};
		clock_nanosleep(CLOCK_MONOTONIC, 0, &allocation, NULL);
	}
	// libcuda sets the defaults itself. That undoes the settings of an interposer from when the TSG came. A server does the same where
	// it shares its own.
	for (int i = 0; i < 4 && !sim_mps(); i++) {
		uint64_t us = i ? machine.copy_timeslice_us : machine.timeslice_us;
		uint8_t schedule[3] = {1}; // NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS.bEnable
		emit_control(c->tsg[i], 0xa06c0103, &us, sizeof us);
		emit_control(c->tsg[i], 0xa06c0101, schedule, sizeof schedule);
	}
	pthread_mutex_unlock(&emit_lock);
	return c;
}

void rm_context_destroy(struct rm_context *c)
{
	for (int i = 0; c && i < 4; i++) {
		NVOS00_PARAMETERS a = {.hRoot = client, .hObjectParent = client, .hObjectOld = c->tsg[i]};
		send(NV_ESC_RM_FREE, &a, sizeof a);
		if (c->shared[i])
			release(server, c->shared[i]);
	}
	free(c);
}

void rm_close(void)
{
	NVOS00_PARAMETERS a = {.hRoot = client, .hObjectOld = client};
	if (!rm_closes_only())
		send(NV_ESC_RM_FREE, &a, sizeof a);
	pthread_mutex_lock(&rm_lock);
	forget(client, client);
	forget(server, server);
	pthread_mutex_unlock(&rm_lock);
	server = 0;
	memset(server_device, 0, sizeof server_device);
	int fd = control_file;
	control_file = -1;
	close(fd);
}

// For tests: the timeslice in force of this process's compute TSG number index, from 0; 0: there is none.
API uint64_t simcuda_timeslice_ns(int index)
{
	uint64_t ns = 0;
	pthread_mutex_lock(&rm_lock);
	for (int i = 0; i < OBJECTS && index >= 0; i++)
		if (objects[i].handle && objects[i].class == KEPLER_CHANNEL_GROUP_A && objects[i].tsg >= 0 && index-- == 0) {
			struct engine now;
			engine_update(objects[i].device, NULL, NULL, &now);
			ns = now.tsg[objects[i].tsg].slice_ns;
		}
	pthread_mutex_unlock(&rm_lock);
	return ns;
}

void rm_forked(void)
{
	pthread_mutex_init(&rm_lock, NULL);
	pthread_mutex_init(&emit_lock, NULL);
}
