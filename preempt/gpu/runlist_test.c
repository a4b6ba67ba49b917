// runlist_test.c - with preempt/gpu/runlist.c preempt/process/rm.c.
//
// A TSG that is off the runlist comes back when no thread renews that, and not before, though the driver refuses some calls.
#define _GNU_SOURCE
#include "preempt/gpu/gpu.h"
#include "test/units/check.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

enum { CLIENT = 7, DEVICE = 10, SUBDEVICE = 11, TSG = 20, CHANNEL = 30, COMPUTE = 40, GPU = 1, SLOT = 3 };
enum { NVOS64_BYTES = 48, NVOS54_BYTES = 32, MS = 1000000 };

struct gp_gpu gp_gpu[GP_GPUS];
struct gp_settings gp_settings = {.fair_us = 2048};
static struct gp_view view;
static uint64_t now_ns = 1000000000000;
static int rings, controls;
static uint32_t refuse; // with which status schedules are refused
static bool off;        // the channel
static uint64_t slice_us;

uint64_t gp_now_ns(void) { return now_ns; }
void gp_futex_wake(_Atomic uint32_t *word, int count, bool shared) { (void)word, (void)count, (void)shared; }
int gp_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns, bool shared)
{
	(void)word, (void)seen, (void)timeout_ns, (void)shared;
	abort(); // the thread does not run here
}
void gp_ring(struct gp_gpu *g) { rings += g->segment == &view.segment; }
static uint32_t told;
void gp_notify(void) { told++; }
_Atomic uint32_t gp_contexts_ending;
static uint32_t doubts;
void gp_membership_doubt(bool lost) { doubts += lost; }
static int fails; // with which error the call fails

// The driver.
int ioctl(int fd, unsigned long request, ...)
{
	va_list list;
	va_start(list, request);
	uint32_t *p = va_arg(list, void *);
	va_end(list);
	CHECK(fd == 5 && _IOC_SIZE(request) == NVOS54_BYTES && p[0] == CLIENT);
	void *parameters;
	memcpy(&parameters, p + 4, sizeof parameters);
	controls++;
	if (fails) {
		errno = fails;
		return -1;
	}
	if (p[2] == 0xa06c0103) {
		p[7] = refuse;
		CHECK(p[1] == TSG);
		memcpy(&slice_us, parameters, sizeof slice_us);
		return 0;
	}
	CHECK(p[1] == SUBDEVICE && p[2] == 0x2080110b && p[6] == 536);
	const uint32_t *disable = parameters;
	CHECK(disable[1] == 1 && disable[6] == CLIENT && disable[70] == CHANNEL);
	p[7] = refuse;
	if (!refuse)
		off = disable[0] & 1;
	return 0;
}

static bool is_client, attribute_known = true;
static CUresult get_attribute(int *value, int attribute, CUdevice device)
{
	CHECK(attribute == CU_DEVICE_ATTRIBUTE_MPS_ENABLED);
	if (attribute_known)
		*value = is_client;
	return attribute_known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
struct gp_driver gp_driver;

// What libcuda does.
static bool by_transfer; // by the call that carries others
static size_t transfer_bytes = 16;
static void make(uint32_t parent, uint32_t handle, uint32_t class)
{
	uint32_t p[NVOS64_BYTES / 4] = {CLIENT, parent, handle, class};
	uint32_t group[5] = {0, 0, 0, 1};
	void *parameters = group;
	memcpy(p + 4, &parameters, sizeof parameters);
	struct {
		uint32_t command, size;
		void *parameters;
	} transfer = {0x2B, sizeof p, p};
	if (by_transfer)
		gp_rm_ioctl(5, _IOC(_IOC_READ | _IOC_WRITE, 'F', 211, transfer_bytes), &transfer);
	else
		gp_rm_ioctl(5, _IOWR('F', 0x2B, p), p);
}

static void end(uint32_t parent, uint32_t handle)
{
	uint32_t p[4] = {CLIENT, parent, handle, 0};
	gp_rm_ioctl(5, _IOWR('F', 0x29, p), p);
}

static void schedule(uint32_t handle)
{
	uint32_t p[NVOS54_BYTES / 4] = {CLIENT, handle, 0xa06c0101};
	gp_rm_ioctl(5, _IOWR('F', 0x2A, p), p);
}

// A TSG is being made until libcuda schedules it, and set up again where it does so once more; a channel that comes later is neither.
static void test_making(void)
{
	struct gp_tsg t;
	uint64_t born = now_ns;

	make(DEVICE, TSG, 0xA06C);
	for (uint32_t i = 0; i < 3; i++) {
		now_ns += MS;
		uint32_t before = told;
		make(TSG, CHANNEL + i, 0xC86F);
		make(CHANNEL + i, COMPUTE + i, 0xCBC0);
		CHECK(told == before + 2); // agents look at it again
		CHECK(gp_rm_tsgs(&t, 1) == 1 && t.born_ns == born && t.made_ns == now_ns && t.changed_ns == now_ns);
	}
	now_ns += MS;
	schedule(TSG);
	uint64_t scheduled = now_ns;
	now_ns += MS;
	make(TSG, CHANNEL + 3, 0xC86F);
	CHECK(gp_rm_tsgs(&t, 1) == 1 && t.born_ns == born && t.made_ns == scheduled && t.changed_ns == now_ns &&
	      t.channels == 4);
	now_ns += MS;
	schedule(TSG);
	CHECK(gp_rm_tsgs(&t, 1) == 1 && t.born_ns == born && t.made_ns == now_ns);
	end(DEVICE, TSG);
	CHECK(gp_rm_tsgs(&t, 1) == 0);
}

// Calls that are carried by another one count as well; those of another size than is known do not, nor those that failed.
static void test_calls(void)
{
	struct gp_tsg t;
	by_transfer = true;
	transfer_bytes = 8;
	make(DEVICE, TSG, 0xA06C);
	make(TSG, CHANNEL, 0xC86F);
	make(CHANNEL, COMPUTE, 0xCBC0);
	CHECK(gp_rm_tsgs(&t, 1) == 0);
	transfer_bytes = 16;
	make(DEVICE, TSG, 0xA06C);
	CHECK(gp_rm_tsgs(&t, 1) == 0); // nothing computes in it
	make(TSG, CHANNEL, 0xC86F);
	make(CHANNEL, COMPUTE, 0xCBC0);
	CHECK(gp_rm_tsgs(&t, 1) == 1 && t.channels == 1 && t.channel[0] == CHANNEL);
	by_transfer = false;
	make(CHANNEL + 5, COMPUTE, 0xCBC0); // of a channel that is none of its own
	make(TSG, CHANNEL + 1, 0x007D);     // no channel
	CHECK(gp_rm_tsgs(&t, 1) == 1 && t.channels == 1);
	uint32_t p[NVOS54_BYTES / 4] = {CLIENT, TSG, 0xa06c0101, 0, 0, 0, 0, 0x57}, resets = t.resets;
	gp_rm_ioctl(5, _IOWR('F', 0x2A, p), p); // refused
	CHECK(gp_rm_tsgs(&t, 1) == 1 && t.resets == resets);
	p[7] = 0;
	p[0]++; // another client's
	gp_rm_ioctl(5, _IOWR('F', 0x2A, p), p);
	p[0]--;
	p[2]++; // another command
	gp_rm_ioctl(5, _IOWR('F', 0x2A, p), p);
	CHECK(gp_rm_tsgs(&t, 1) == 1 && t.resets == resets);
	uint32_t f[4] = {CLIENT, DEVICE, TSG, 0x57}; // refused
	gp_rm_ioctl(5, _IOWR('F', 0x29, f), f);
	CHECK(gp_rm_tsgs(&t, 1) == 1);
	gp_rm_ioctl(5, _IOWR('F', 0x29, f), NULL);
	end(TSG, CHANNEL);
	end(DEVICE, TSG);
	CHECK(gp_rm_tsgs(&t, 1) == 0);
}

// A client of an MPS server: contexts are shared, but where all compute channels that RM shows are in TSGs that this process allocated. A
// TSG of another process comes by another call, with a handle that no allocation has named.
static void test_sharing(void)
{
	enum { SHARED = TSG + 200, SHARED_CHANNEL };
	gp_driver.cuDeviceGetAttribute = get_attribute;
	is_client = false;
	CHECK(!gp_under_mps(0));
	is_client = true;
	CHECK(gp_under_mps(0) && !gp_rm_channels()); // nothing is seen yet, or never
	make(DEVICE, TSG, 0xA06C);
	make(TSG, CHANNEL, 0xC86F);
	CHECK(gp_under_mps(0)); // of a copy engine, as far as is known
	make(CHANNEL, COMPUTE, 0xCBC0);
	CHECK(!gp_under_mps(0) && gp_rm_channels() == 1);
	make(SHARED, SHARED_CHANNEL, 0xC86F);
	CHECK(!gp_under_mps(0) && gp_rm_channels() == 1);
	make(SHARED_CHANNEL, COMPUTE + 1, 0xCBC0);
	CHECK(gp_under_mps(0) && gp_rm_channels() == 1);
	make(SHARED, SHARED_CHANNEL + 1, 0xC86F);
	make(SHARED_CHANNEL + 1, COMPUTE + 2, 0xCBC0);
	CHECK(gp_rm_channels() == 2);
	end(SHARED, SHARED_CHANNEL + 1);
	CHECK(gp_rm_channels() == 1);
	end(SHARED, SHARED_CHANNEL);
	CHECK(!gp_under_mps(0));
	end(DEVICE, TSG);
	CHECK(gp_under_mps(0));
	attribute_known = false;
	CHECK(!gp_under_mps(0)); // an old driver
	gp_driver.cuDeviceGetAttribute = NULL;
}

static uint64_t look_after(uint64_t ns)
{
	now_ns += ns;
	return gp_runlist_look(now_ns);
}

static void make_all(void)
{
	make(DEVICE, SUBDEVICE, 0x2080);
	make(DEVICE, TSG, 0xA06C);
	make(TSG, CHANNEL, 0xC86F);
	make(CHANNEL, COMPUTE, 0xCBC0);
}

static bool control_loses(int error, uint32_t status)
{
	uint64_t us = 1;
	struct gp_tsg t;
	uint32_t before = doubts;
	make_all();
	fails = error;
	refuse = status;
	CHECK(gp_rm_control(5, CLIENT, TSG, 0xa06c0103, &us, sizeof us) == (error ? -1 : (int)status));
	fails = 0;
	refuse = 0;
	bool lost = gp_rm_tsgs(&t, 1) == 0;
	CHECK(lost == (doubts == before + 1));
	end(DEVICE, TSG);
	end(DEVICE, SUBDEVICE);
	return lost;
}

// A TSG counts as lost where it is freed while the program ends no context, or where its file or client is no more. Other refusals say nothing
// of the kind.
static void test_losses(void)
{
	doubts = 0;
	make_all();
	gp_contexts_ending = 1;
	end(DEVICE, TSG);
	CHECK(!doubts);
	gp_contexts_ending = 0;
	make_all();
	end(CHANNEL, COMPUTE);
	CHECK(!doubts);
	end(DEVICE, TSG);
	CHECK(doubts == 1);
	end(DEVICE, TSG); // there is none
	CHECK(doubts == 1);
	make_all();
	end(0, CLIENT);
	CHECK(doubts == 2);
	CHECK(control_loses(EBADF, 0) && control_loses(ENOTTY, 0) && control_loses(0, 0x23));
	CHECK(!control_loses(EPERM, 0) && !control_loses(EINVAL, 0) && !control_loses(0, 0x1b) && !control_loses(0, 0x21));
	// One without compute is no loss.
	doubts = 0;
	make(DEVICE, TSG, 0xA06C);
	end(DEVICE, TSG);
	CHECK(!doubts);
	// A TSG that is made again with its handle, since its file was closed, is listed once, though a place before it is free.
	struct gp_tsg list[4];
	enum { EARLIER = TSG + 100, EARLIER_CHANNEL };
	make(DEVICE, SUBDEVICE, 0x2080);
	make(DEVICE, EARLIER, 0xA06C);
	make(EARLIER, EARLIER_CHANNEL, 0xC86F);
	make_all();
	CHECK(gp_rm_tsgs(list, 4) == 1);
	end(DEVICE, EARLIER);
	make_all();
	CHECK(gp_rm_tsgs(list, 4) == 1);
	end(DEVICE, TSG);
	CHECK(gp_rm_tsgs(list, 4) == 0);
	controls = 0;
	slice_us = 0;
}

int main(void)
{
	gp_gpu[GPU].segment = &view.segment;
	gp_gpu[GPU].slot = SLOT;
	struct gp_slot *slot = &view.own;
	slot->heartbeat_ns = now_ns;
	make(DEVICE, SUBDEVICE, 0x2080);
	test_making();
	test_calls();
	test_losses();
	test_sharing();
	make(DEVICE, SUBDEVICE, 0x2080);
	make(DEVICE, TSG, 0xA06C);
	make(TSG, CHANNEL, 0xC86F);
	make(CHANNEL, COMPUTE, 0xCBC0);

	CHECK(gp_runlist_look(now_ns) == 0 && !controls);
	CHECK(gp_runlist_set(GPU, CLIENT, TSG + 1, false) == 0x57 && !controls);

	// Renewed, it stays off.
	slot->suspended = 1;
	CHECK(gp_runlist_set(GPU, CLIENT, TSG, false) == 0 && off);
	for (int i = 0; i < 10; i++) {
		CHECK(look_after(1000 * MS) && off);
		CHECK(gp_runlist_renew(GPU));
	}
	// By another GPU's agent, it does not.
	CHECK(look_after(1000 * MS) <= 500 * MS && off && slot->heartbeat_ns && !slice_us);
	gp_runlist_renew(GPU - 1);
	// The driver refuses in passing: it is asked again.
	refuse = 0x21;
	CHECK(look_after(1000 * MS) && off && rings == 1);
	refuse = 0;
	CHECK(look_after(10 * MS) == 0 && !off);
	CHECK(slice_us == 2048 && rings == 1 && !slot->heartbeat_ns && !slot->suspended && slot->timeslice_us == 2048);
	CHECK(!gp_runlist_renew(GPU) && gp_runlist_renew(GPU));

	// An agent that was interrupted before it took the TSG off has all of the lease again.
	now_ns += 10000 * (uint64_t)MS;
	CHECK(gp_runlist_set(GPU, CLIENT, TSG, false) == 0 && off);
	CHECK(look_after(1000 * MS) && off);

	// Refused, it may be off in part.
	CHECK(gp_runlist_set(GPU, CLIENT, TSG, true) == 0 && !off);
	CHECK(look_after(5000 * (uint64_t)MS) == 0);
	refuse = 0x21;
	off = true;
	CHECK(gp_runlist_set(GPU, CLIENT, TSG, false) == 0x21);
	refuse = 0;
	CHECK(look_after(2000 * MS) == 0 && !off);

	// One that is freed is forgotten, also where its handle is used again.
	CHECK(gp_runlist_set(GPU, CLIENT, TSG, false) == 0 && off);
	end(TSG, CHANNEL);
	end(DEVICE, TSG);
	controls = 0;
	make(DEVICE, TSG, 0xA06C);
	make(TSG, CHANNEL, 0xC86F);
	make(CHANNEL, COMPUTE, 0xCBC0);
	CHECK(look_after(2000 * MS) == 0 && !controls);
	return 0;
}
