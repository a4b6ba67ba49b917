// ticket.c - legacy IPC of memory of cuMemAlloc: what the program takes for the driver's handle is a ticket.
//
// The driver gives no such handle for memory that is mapped. With a ticket another process of ours gets descriptors of the
// memory from the one that has it, and maps them. From then on both have the same pages, which therefore stay. A process
// without swap gives the driver's own handles, and opens both.
#define _GNU_SOURCE
#include "preempt/memory/own.h"

#include <string.h>
#include <unistd.h>

#define MAGIC 0x31746b6370726770ull // "gprpckt1"
#define MOST_BYTES (1ull << 46)

static size_t chunks_of(uint64_t bytes) { return (bytes + GP_CHUNK_BYTES - 1) / GP_CHUNK_BYTES; }

// Has gp_memory_lock throughout, so nobody ends the range meanwhile.
static int export_chunk(uint64_t number, size_t chunk)
{
	for (struct gp_range *r = gp_range_from(0); r; r = gp_range_from(r->address + r->bytes)) {
		int fd = -1;
		if (r->id != number)
			continue;
		bool may = r->pins & GP_PIN_EXPORTED && !r->ending && !r->doomed && chunk < r->chunks;
		return may && !gp_driver.cuMemExportToShareableHandle(&fd, r->chunk[chunk].handle,
								      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ?
			       fd :
			       -1;
	}
	return -1;
}

int gp_ticket_export(uint64_t number, size_t chunk)
{
	pthread_mutex_lock(&gp_memory_lock);
	int fd = export_chunk(number, chunk);
	pthread_mutex_unlock(&gp_memory_lock);
	return fd;
}

enum kind { NOT_OURS, ALLOCATED, REFUSED };

// The kind of an address for cuIpcGetMemHandle. For memory of cuMemAlloc it fills in the ticket and pins the memory.
static enum kind take(CUdeviceptr at, struct gp_ticket *t, CUdeviceptr *sample)
{
	pthread_mutex_lock(&gp_memory_lock);
	struct gp_range *r = gp_range_at(at);
	enum kind kind = !r ? NOT_OURS : REFUSED;
	if (r)
		*sample = gp_sample_of(r);
	if (r && r->kind == GP_RANGE_ALLOCATED && !r->import.opened && !r->ending && at - r->address < r->asked &&
	    r->properties.handle_types) {
		kind = ALLOCATED;
		gp_range_pin(r, GP_PIN_EXPORTED);
		*t = (struct gp_ticket){.magic = MAGIC, .number = r->id, .asked = r->asked, .bytes = r->bytes};
		memcpy(t->gpu, r->gpu->uuid, sizeof t->gpu);
	}
	pthread_mutex_unlock(&gp_memory_lock);
	return kind;
}

CUresult gp_cuIpcGetMemHandle(struct gp_ipc_handle *out, CUdeviceptr at)
{
	struct gp_ticket t;
	CUdeviceptr sample = 0;
	if (!out)
		return gp_driver.cuIpcGetMemHandle(out, at);
	gp_memory_enter(); // a pin comes while the memory is in
	enum kind kind = take(at, &t, &sample);
	gp_memory_leave();
	if (kind == NOT_OURS)
		return gp_driver.cuIpcGetMemHandle(out, at);
	if (kind == REFUSED)
		return CUDA_ERROR_INVALID_VALUE;
	const uint8_t *process = gp_ticket_process();
	if (!process)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(t.process, process, sizeof t.process);
	memcpy(out, &t, sizeof t);
	return CUDA_SUCCESS;
}

static bool is_sound(const struct gp_ticket *t)
{
	return t->bytes && t->bytes <= MOST_BYTES && t->bytes % GP_GRANULE == 0 && t->asked <= t->bytes &&
	       t->asked > t->bytes - GP_GRANULE;
}

static struct gp_gpu *gpu_of(const struct gp_ticket *t, struct gp_gpu *current)
{
	for (int i = 0; i < GP_GPUS && gp_gpu[i].known; i++)
		if (!memcmp(gp_gpu[i].uuid, t->gpu, sizeof t->gpu))
			return &gp_gpu[i];
	return current;
}

// Where the ticket is already open in this context, the address is the same.
static bool open_again(const struct gp_ticket *t, CUcontext context, CUdeviceptr *out)
{
	bool is = false;
	pthread_mutex_lock(&gp_memory_lock);
	for (struct gp_range *r = gp_range_from(0); r && !is; r = gp_range_from(r->address + r->bytes))
		if (r->import.opened && !r->ending && r->context == context && r->import.number == t->number &&
		    !memcmp(r->import.process, t->process, sizeof t->process)) {
			r->import.opened++;
			*out = r->address;
			is = true;
		}
	pthread_mutex_unlock(&gp_memory_lock);
	return is;
}

static struct gp_range *reserve(const struct gp_ticket *t, struct gp_context *c, CUresult *result)
{
	CUdeviceptr address = 0;
	struct gp_access access = {CU_MEM_LOCATION_TYPE_DEVICE, c->gpu->device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	*result = gp_driver.cuMemAddressReserve(&address, t->bytes, 0, 0, 0);
	if (*result)
		return NULL;
	pthread_mutex_lock(&gp_memory_lock);
	struct gp_range *r = gp_range_new(address, t->asked, t->bytes, GP_RANGE_ALLOCATED, chunks_of(t->bytes));
	if (r) {
		r->gpu = gpu_of(t, c->gpu);
		r->context = c->handle;
		r->pins = GP_PIN_IMPORTED;
		r->ending = true; // until it is whole
		r->access[r->accesses++] = access;
		memcpy(r->import.process, t->process, sizeof t->process);
		r->import.number = t->number;
		r->import.opened = 1;
	}
	pthread_mutex_unlock(&gp_memory_lock);
	if (!r) {
		GP_GIVE_BACK(gp_driver.cuMemAddressFree(address, t->bytes));
		*result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	return r;
}

static CUresult import_chunk(struct gp_chunk *c, int socket)
{
	int fd = gp_ticket_receive(socket);
	if (fd < 0)
		return CUDA_ERROR_MAP_FAILED;
	CUresult result = gp_driver.cuMemImportFromShareableHandle(&c->handle, (void *)(intptr_t)fd,
								   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	close(fd);
	if (result)
		return result;
	result = gp_driver.cuMemMap(c->address, c->bytes, 0, c->handle, 0);
	if (result)
		GP_GIVE_BACK(gp_driver.cuMemRelease(c->handle));
	return result;
}

static CUresult fill(struct gp_range *r, int socket)
{
	CUresult result = CUDA_SUCCESS;
	size_t made = 0, mapped = 0;
	for (; made < r->chunks; made++) {
		result = import_chunk(&r->chunk[made], socket);
		if (result)
			break;
		mapped += r->chunk[made].bytes;
	}
	if (!result)
		result = gp_driver.cuMemSetAccess(r->address, r->bytes, r->access, r->accesses);
	if (result)
		gp_chunks_empty(r, made, mapped);
	return result;
}

static CUresult open_ticket(const struct gp_ticket *t, struct gp_context *c, CUdeviceptr *out)
{
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	if (open_again(t, c->handle, out))
		return CUDA_SUCCESS;
	int socket = gp_ticket_connect(t);
	if (socket < 0) {
		gp_log_line("a handle of cuIpcGetMemHandle can not be opened: the process that gave it has ended, is "
			    "another user's, or "
			    "is in another network namespace");
		return CUDA_ERROR_MAP_FAILED;
	}
	struct gp_range *r = reserve(t, c, &result);
	if (r && (result = fill(r, socket))) {
		gp_chunks_forget(r);
	} else if (r) {
		*out = r->address;
		if (gp_memory_on)
			gp_pin_say(GP_PIN_IMPORTED);
		pthread_mutex_lock(&gp_memory_lock);
		r->ending = false;
		pthread_mutex_unlock(&gp_memory_lock);
	}
	close(socket);
	return result;
}

CUresult gp_cuIpcOpenMemHandle_v2(CUdeviceptr *out, struct gp_ipc_handle handle, unsigned flags)
{
	struct gp_ticket t;
	memcpy(&t, &handle, sizeof t);
	if (t.magic != MAGIC || !out)
		return gp_driver.cuIpcOpenMemHandle(out, handle, flags);
	struct gp_context *c = gp_current_context();
	if (!c || gp_ticket_is_own(t.process)) // as the driver answers
		return CUDA_ERROR_INVALID_CONTEXT;
	if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || !is_sound(&t) || !gp_driver.cuMemImportFromShareableHandle)
		return CUDA_ERROR_INVALID_VALUE;
	gp_memory_enter();
	int mode = gp_relax_captures();
	CUresult result = open_ticket(&t, c, out);
	gp_unrelax_captures(mode);
	gp_memory_leave();
	return result;
}

CUresult gp_cuIpcOpenMemHandle(CUdeviceptr *out, struct gp_ipc_handle handle, unsigned flags)
{
	return gp_cuIpcOpenMemHandle_v2(out, handle, flags);
}

// Counts one use less. After the last one *r is the range, for the caller to end; else it is NULL. False: the address is not
// from a ticket.
static bool let_go(CUdeviceptr at, struct gp_range **r)
{
	pthread_mutex_lock(&gp_memory_lock);
	struct gp_range *found = gp_range_at(at);
	bool is = found && found->import.opened && found->address == at && !found->ending && !found->doomed;
	*r = is && found->import.opened == 1 ? found : NULL;
	if (*r)
		found->ending = true;
	else if (is)
		found->import.opened--;
	pthread_mutex_unlock(&gp_memory_lock);
	return is;
}

CUresult gp_cuIpcCloseMemHandle(CUdeviceptr at)
{
	struct gp_range *r;
	CUresult result = CUDA_SUCCESS;
	gp_memory_enter();
	if (!let_go(at, &r)) {
		result = gp_driver.cuIpcCloseMemHandle(at);
	} else if (r) {
		result = gp_peers_synchronize(r, gp_current_handle());
		if (!result)
			result = gp_range_end(r, false);
		if (result) {
			pthread_mutex_lock(&gp_memory_lock);
			r->ending = false;
			pthread_mutex_unlock(&gp_memory_lock);
		}
	}
	gp_memory_leave();
	return result;
}
