// send.c - hands kernels and graphs to the driver.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"

#include <string.h>

CUresult blp_call_driver(CUfunction f, const uint32_t *grid, const uint32_t *block, uint32_t shared, CUstream stream,
			 const struct gp_launch_attribute *attributes, uint32_t attribute_count, void **parameters,
			 void **extra)
{
	if (!attribute_count)
		return gp_driver.cuLaunchKernel(f, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared,
						stream, parameters, extra);
	struct gp_launch_config config = {{grid[0], grid[1], grid[2]},
					  {block[0], block[1], block[2]},
					  shared,
					  stream,
					  attributes,
					  attribute_count};
	return gp_driver.cuLaunchKernelEx(&config, f, parameters, extra);
}

// Hands a logged launch to the driver, with a priority of its own unless that is NULL, or the program gave it one.
static CUresult call_driver_for(const struct blp_entry *e, CUstream stream, const int *priority, void **parameters,
				void **extra)
{
	uint32_t n = e->attribute_count;
	struct gp_launch_attribute all[n + 1];

	for (uint32_t i = 0; i < n && priority; i++)
		if (e->attributes[i].id == CU_LAUNCH_ATTRIBUTE_PRIORITY)
			priority = NULL;
	if (priority && gp_driver.cuLaunchKernelEx) {
		memcpy(all, e->attributes, n * sizeof *all);
		all[n] = (struct gp_launch_attribute){.id = CU_LAUNCH_ATTRIBUTE_PRIORITY, .value.priority = *priority};
		CUresult result = blp_call_driver(e->function, e->grid, e->block, e->shared_bytes, stream, all, n + 1,
						  parameters, extra);
		if (result != CUDA_ERROR_INVALID_VALUE && result != CUDA_ERROR_NOT_SUPPORTED)
			return result; // else the driver may not know the attribute
	}
	return blp_call_driver(e->function, e->grid, e->block, e->shared_bytes, stream, e->attributes, n, parameters,
			       extra);
}

// Appends the hidden parameter to those that the program gave.
void blp_with_hidden(void **to, void **given, uint16_t count, const CUdeviceptr *hidden)
{
	for (uint16_t i = 0; i < count; i++)
		to[i] = given[i];
	to[count] = (void *)hidden;
}

// given are the program's arguments, count of them; NULL: those of the log are used.
CUresult blp_drive_given(struct gp_domain *d, struct blp_entry *e, void **given, uint16_t count)
{
	size_t bytes = e->argument_bytes;
	void *parameters[given ? count + 1 : 1];
	CUdeviceptr record = e->record && !blp_is_unguarded(e) ?
				     (d->arena + e->record * sizeof(struct gpreempt_record)) | e->shift :
				     0;
	CUstream stream = blp_queue_of(d, &d->stream_of[e->stream]);
	void *extra[] = {(void *)CU_LAUNCH_PARAM_BUFFER_POINTER, e->arguments, (void *)CU_LAUNCH_PARAM_BUFFER_SIZE,
			 &bytes, NULL};

	if (blp_is_unguarded(e) && e->spare) {
		struct gpreempt_record *staged = &d->staged[e->stream];
		blp_inside = true;
		CUresult result = gp_driver.cuMemcpyHtoDAsync(blp_spare(d, e->spare), staged, sizeof *staged, stream);
		blp_inside = false;
		if (result)
			return result;
		record = blp_spare(d, e->spare) | e->shift;
	}
	memcpy(e->arguments + bytes - sizeof record, &record, sizeof record);
	if (given)
		blp_with_hidden(parameters, given, count, &record);
	blp_inside = true;
	CUresult result = call_driver_for(e, stream, blp_priority_on(d, e->stream, stream), given ? parameters : NULL,
					  given ? NULL : extra);
	blp_inside = false;
	if (!result)
		blp_send(d, e);
	return result;
}

CUresult blp_drive(struct gp_domain *d, struct blp_entry *e) { return blp_drive_given(d, e, NULL, 0); }

CUresult blp_drive_on(struct blp_entry *e, CUstream stream, const int *priority, CUdeviceptr hidden)
{
	size_t bytes = e->argument_bytes;
	void *extra[] = {(void *)CU_LAUNCH_PARAM_BUFFER_POINTER, e->arguments, (void *)CU_LAUNCH_PARAM_BUFFER_SIZE,
			 &bytes, NULL};

	memcpy(e->arguments + bytes - sizeof hidden, &hidden, sizeof hidden);
	blp_inside = true;
	CUresult result = call_driver_for(e, stream, priority, NULL, extra);
	blp_inside = false;
	return result;
}

// Before what the stream gets next.
static CUresult zero_records(struct gp_domain *d, struct blp_entry *e, CUstream ahead)
{
	struct blp_twin *t = e->twin;
	CUdeviceptr records = d->arena + t->first * sizeof *t->image;
	CUresult result = blp_zero(d, records, t->count * sizeof *t->image);
	if (!result)
		result = gp_driver.cuEventRecord(t->zeroed, d->zeros);
	if (!result)
		result = gp_driver.cuStreamWaitEvent(ahead, t->zeroed, 0);
	t->blank = result;
	return result;
}

static CUresult drive_parted(struct gp_domain *d, struct blp_entry *e)
{
	struct blp_twin *t = e->twin;
	CUstream stream = blp_queue_of(d, &d->stream_of[e->stream]);
	CUresult result = 0;

	for (uint32_t i = 0; i < t->count && !result; i++) {
		struct gpreempt_record *r = &t->image[i];
		CUdeviceptr record = 0;
		if (t->over[i])
			continue;
		if (r->count) { // some of its blocks ran in an earlier launch
			record = blp_spare(d, blp_spare_of_node(t, i));
			r->state = 0;
			r->done = r->count;
			blp_inside = true;
			result = gp_driver.cuMemcpyHtoDAsync(record, r, sizeof *r, stream);
			blp_inside = false;
			record |= t->kernel[i].shift;
		}
		if (!result)
			result = blp_drive_on(&t->kernel[i], stream, blp_priority_on(d, e->stream, stream), record);
		t->over[i] = !result;
	}
	if (!result)
		blp_send(d, e);
	return result;
}

CUresult blp_drive_graph(struct gp_domain *d, struct blp_entry *e)
{
	struct blp_twin *t = e->twin;
	CUstream stream = blp_queue_of(d, &d->stream_of[e->stream]);
	CUresult result = 0;

	if (blp_is_unguarded(e) && t->parted)
		return drive_parted(d, e);
	blp_inside = true;
	// The launch before is complete. Not on the program's stream, behind what a stop is to cut: a freeze comes behind the zeroing
	// (freeze_graphs). Else a launch that was replaced would run after all.
	if (!blp_is_unguarded(e) && t->blank)
		result = zero_records(d, e, stream);
	if (!result) // unguarded: the program's own instance, whose kernels always run
		result = gp_driver.cuGraphLaunch(blp_is_unguarded(e) ? t->of : t->own, stream);
	blp_inside = false;
	if (!result)
		blp_send(d, e);
	return result;
}
