// runlist.c - takes the process's TSGs off the runlist and puts them back.
//
// Only an agent knows when they are to come back, and an agent is Go: it stands still where Go needs memory and there is
// none, or where it gets no processor. So a TSG is off on a lease, which the agent renews whenever it looks. When the lease runs out a
// thread that stays in C, and needs no memory, puts the TSGs back.
#define _GNU_SOURCE
#include "preempt/gpu/gpu.h"

enum {
	NVA06C_CTRL_CMD_SET_TIMESLICE = 0xa06c0103,         // ctrl/ctrla06c.h
	NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS = 0x2080110b, // ctrl/ctrl2080/ctrl2080fifo.h
	NV_ERR_OBJECT_NOT_FOUND = 0x57,                     // nvstatuscodes.h
	ENTRIES = 64,                                       // NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES
	LISTED = 64,
};

// Takes channels off the runlist, preempting running work, or puts them back. pRunlistPreemptEvent must be 0.
typedef struct {
	uint8_t bDisable, Pad0[3];
	uint32_t numChannels;
	uint8_t bOnlyDisableScheduling, bRewindGpPut, Pad1[6];
	uint64_t pRunlistPreemptEvent;
	uint32_t hClientList[ENTRIES], hChannelList[ENTRIES];
} NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS;

_Static_assert(sizeof(NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS) == 536, "ctrl2080fifo.h");
_Static_assert(offsetof(NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS, pRunlistPreemptEvent) == 16, "ctrl2080fifo.h");
_Static_assert(offsetof(NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS, hClientList) == 24, "ctrl2080fifo.h");
_Static_assert(offsetof(NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS, hChannelList) == 280, "ctrl2080fifo.h");

// Longer than two looks of an agent, and than a late one of a loaded machine.
static const uint64_t lease_ns = 1500000000;
// A control may be refused in passing, while libcuda frees something.
static const uint64_t ask_again_ns = 5000000;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // what follows, and every control of a runlist
static struct gp_tsg listed[LISTED];
static struct {
	uint64_t renewed_ns;
	bool ran_out;
} lease[GP_GPUS];
static _Atomic uint32_t suspensions; // futex, for the thread

static int control(const struct gp_tsg *t, bool on)
{
	NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS p = {.bDisable = !on, .numChannels = t->channels};

	for (uint32_t i = 0; i < t->channels; i++) {
		p.hClientList[i] = t->client;
		p.hChannelList[i] = t->channel[i];
	}
	return gp_rm_control(t->fd, t->client, t->subdevice, NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, &p, sizeof p);
}

static uint32_t list(void)
{
	uint32_t count = gp_rm_tsgs(listed, LISTED);
	return count < LISTED ? count : LISTED;
}

int gp_runlist_set(int gpu, uint32_t client, uint32_t handle, bool on)
{
	int status = NV_ERR_OBJECT_NOT_FOUND;

	pthread_mutex_lock(&lock);
	for (uint32_t i = 0, n = list(); i < n; i++) {
		if (listed[i].client != client || listed[i].handle != handle)
			continue;
		if (!on) { // first: a refusal leaves it open whether some channels are off
			gp_rm_suspended(client, handle, gpu);
			lease[gpu].renewed_ns = gp_now_ns();
		}
		status = control(&listed[i], on);
		if (on && !status)
			gp_rm_suspended(client, handle, -1);
		break;
	}
	pthread_mutex_unlock(&lock);
	if (!on) {
		suspensions++;
		gp_futex_wake(&suspensions, 1, false);
	}
	return status;
}

bool gp_runlist_renew(int gpu)
{
	pthread_mutex_lock(&lock);
	bool ran_out = lease[gpu].ran_out;
	lease[gpu].ran_out = false;
	lease[gpu].renewed_ns = gp_now_ns();
	pthread_mutex_unlock(&lock);
	return !ran_out;
}

// The agent stands still. Peers learn that this process takes no turns, as they would find out themselves a little later. A short
// timeslice beside theirs would stop both dead.
static void stands_still(int gpu)
{
	struct gp_slot *slot = gp_own_slot(&gp_gpu[gpu]);

	lease[gpu].ran_out = true;
	if (!slot)
		return;
	slot->heartbeat_ns = 0;
	slot->suspended = 0;
	if (gp_settings.fair_us)
		slot->timeslice_us = (uint32_t)gp_settings.fair_us;
	gp_ring(&gp_gpu[gpu]);
}

static void make_fair(const struct gp_tsg *t)
{
	uint64_t us = gp_settings.fair_us;
	if (us)
		gp_rm_control(t->fd, t->client, t->handle, NVA06C_CTRL_CMD_SET_TIMESLICE, &us, sizeof us);
}

void gp_runlist_fair(void)
{
	pthread_mutex_lock(&lock);
	for (uint32_t i = 0, n = list(); i < n; i++)
		make_fair(&listed[i]);
	pthread_mutex_unlock(&lock);
}

uint64_t gp_runlist_look(uint64_t now)
{
	uint64_t next = 0;

	pthread_mutex_lock(&lock);
	for (uint32_t i = 0, n = list(); i < n; i++) {
		const struct gp_tsg *t = &listed[i];
		if (t->suspended_on < 0)
			continue;
		uint64_t ends = lease[t->suspended_on].renewed_ns + lease_ns, wait = ask_again_ns;
		if (now < ends) {
			wait = ends - now;
		} else {
			if (!lease[t->suspended_on].ran_out)
				stands_still(t->suspended_on);
			make_fair(t); // first: the driver's refusal would only leave the one that there is
			if (!control(t, true)) {
				gp_rm_suspended(t->client, t->handle, -1);
				continue;
			}
		}
		if (!next || wait < next)
			next = wait;
	}
	pthread_mutex_unlock(&lock);
	return next;
}

void gp_runlist_guard(void)
{
	for (;;) {
		uint32_t seen = suspensions;
		gp_futex_wait(&suspensions, seen, gp_runlist_look(gp_now_ns()), false);
	}
}
