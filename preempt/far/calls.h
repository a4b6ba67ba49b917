// calls.h - the calls of the core that Go makes, in the program (far.h). cgo includes this.
#ifndef GPREEMPT_CALLS_H
#define GPREEMPT_CALLS_H

#include "hints/bridge.h"
#include "hints/hints.h"
#include "hints/nvtx.h"
#include "preempt/bridge.h"
#include "preempt/code/request.h"
#include "preempt/far/far.h"

#include <string.h>

#define FAR_RESULT(type, r) ((type)(__builtin_types_compatible_p(type, bool) ? (uint64_t)(uint8_t)(r) : (r)))

// FAR(lane, type, name, function, (parameters), arguments): static inline type name(parameters) calls the function, whose arguments are
// numbers, on the lane.
#define FAR(of, type, name, function, parameters, ...) \
	static inline type name parameters \
	{ \
		uint64_t r_, arguments_[] = {0, ##__VA_ARGS__}; \
		struct gp_lane *l_ = gp_far_begin(of); \
		memcpy(l_->call.argument, arguments_ + 1, sizeof arguments_ - sizeof *arguments_); \
		gp_far_carry_out(l_, (void (*)(void))function); \
		r_ = l_->call.result; \
		gp_far_end(l_); \
		return FAR_RESULT(type, r_); \
	}

// FAR_TEXT: the function returns text, which is copied to the last parameter, of GP_FAR_TEXT bytes; false: it returned NULL. in: an argument is
// text of ours.
#define FAR_TEXT(of, name, function, parameters, ...) \
	static inline bool name parameters \
	{ \
		uint64_t arguments_[] = {0, ##__VA_ARGS__}; \
		struct gp_lane *l_ = gp_far_begin(of); \
		memcpy(l_->call.argument, arguments_ + 1, sizeof arguments_ - sizeof *arguments_); \
		l_->call.text = 1; \
		gp_far_carry_out(l_, (void (*)(void))function); \
		bool is_ = l_->call.result; \
		text[0] = 0; \
		if (is_) \
			memcpy(text, l_->data, GP_FAR_TEXT - 1), text[GP_FAR_TEXT - 1] = 0; \
		gp_far_end(l_); \
		return is_; \
	}

// FAR_DATA(lane, type, name, function, (parameters), place, in, out, bytes, arguments): the argument of that place points to bytes. These are
// copied from in before the call, and to out after it, where in and out are not NULL.
#define FAR_DATA(of, type, name, function, parameters, place, in, out, bytes, ...) \
	static inline type name parameters \
	{ \
		uint64_t r_, arguments_[] = {0, ##__VA_ARGS__}; \
		const void *from_ = in; \
		size_t bytes_ = (bytes) < GP_FAR_DATA ? (bytes) : GP_FAR_DATA; \
		void *to_ = out; \
		struct gp_lane *l_ = gp_far_begin(of); \
		memcpy(l_->call.argument, arguments_ + 1, sizeof arguments_ - sizeof *arguments_); \
		l_->call.in_data = 1u << (place); \
		l_->call.argument[place] = 0; \
		if (from_) \
			memcpy(l_->data, from_, bytes_); \
		gp_far_carry_out(l_, (void (*)(void))function); \
		if (to_) \
			memcpy(to_, l_->data, bytes_); \
		r_ = l_->call.result; \
		gp_far_end(l_); \
		return FAR_RESULT(type, r_); \
	}

#define CORE GP_LANE_CORE
#define AGENT (GP_LANE_AGENT + (uint32_t)gpu % GP_GPUS)
#define METER (GP_LANE_METER + (uint32_t)gpu % GP_GPUS)
#define U(x) ((uint64_t)(x))

// The start, and what contexts and GPUs come.
FAR(CORE, bool, far_lane_thread, gp_lane_open_here, (uint32_t lane), U(lane))
static inline bool far_lane_open(uint32_t lane)
{
	bool is = gp_far_is_open(lane) || far_lane_thread(lane);
	if (is)
		gp_far_opened(lane);
	return is;
}
FAR_DATA(CORE, int, far_settings, gp_bridge_settings, (const struct gp_bridge_settings_told *s), 0, s, NULL, sizeof *s, 0)
FAR_DATA(CORE, bool, far_image, gp_bridge_image,
	 (uint32_t which, uint32_t offset, const void *part, uint32_t bytes, uint32_t total), 2, part, NULL, bytes,
	 U(which), U(offset), 0, U(bytes), U(total))
FAR(CORE, int, far_lower_client, gp_mps_lower_client, (void))
FAR(CORE, bool, far_server_runs, gp_mps_server_runs, (void))
FAR(CORE, int, far_driver_version, gp_driver_version, (void))
FAR(CORE, bool, far_start_threads, gp_bridge_start_threads, (bool hints, bool suspends), U(hints), U(suspends))
FAR(CORE, int, far_start_wanted, gp_bridge_start_wanted, (void))
FAR_TEXT(CORE, far_environment, gp_environment, (uint32_t which, char *text), U(which))
FAR_TEXT(CORE, far_hold_unwanted, gp_hold_unwanted, (char *text))
FAR_TEXT(CORE, far_start_memory, gp_bridge_start_memory_here, (char *text))
FAR_TEXT(CORE, far_start_blp, gp_bridge_start_blp_here, (char *text))
FAR(CORE, int, far_count_memory, gp_bridge_count_memory_here, (void))
FAR(CORE, int, far_memory_settings, gp_bridge_memory_settings,
    (uint64_t reserve, uint64_t host, uint64_t wait_ns, bool asks), reserve, host, wait_ns, U(asks))
FAR(CORE, int, far_set_level, gp_bridge_set_level, (uint32_t level, uint32_t turns), U(level), U(turns))
FAR(CORE, bool, far_set_armed, gp_bridge_set_armed_here, (uint32_t on), U(on))
FAR(CORE, int, far_install, gp_bridge_install, (bool sockets), U(sockets))
FAR(CORE, int, far_set_clock, gp_bridge_set_clock, (int64_t ahead_ns), U(ahead_ns))
static inline void far_set_limits(uint64_t max_hold_ns, uint64_t memory, double part, double share)
{
	struct gp_lane *l = gp_far_begin(CORE);
	l->call.argument[0] = max_hold_ns;
	l->call.argument[1] = memory;
	l->call.number[0] = part;
	l->call.number[1] = share;
	gp_far_carry_out(l, (void (*)(void))gp_bridge_set_limits);
	gp_far_end(l);
}
static inline void far_set_objective(const struct gp_wish *own, uint32_t over_steps, double min_slot_ns, double max_slot_ns)
{
	struct gp_lane *l = gp_far_begin(CORE);
	memcpy(l->data, own, sizeof *own);
	l->call.in_data = 1;
	l->call.argument[1] = over_steps;
	l->call.number[0] = min_slot_ns;
	l->call.number[1] = max_slot_ns;
	gp_far_carry_out(l, (void (*)(void))gp_bridge_set_objective);
	gp_far_end(l);
}
FAR_DATA(CORE, int, far_tell_objective, gp_bridge_tell_objective, (bool says, const struct gp_wish *w), 1, w, NULL,
	 sizeof *w, U(says), 0)
FAR_DATA(CORE, bool, far_read_objective, gp_bridge_read_objective, (struct gp_wish * w), 0, NULL, w, sizeof *w, 0)
FAR(CORE, uint32_t, far_log_written, gp_log_written, (void))
FAR_TEXT(CORE, far_log_next, gp_log_next, (uint32_t written, char *text), U(written))
FAR(CORE, bool, far_gpu_known, gp_bridge_gpu_known, (int gpu), U(gpu))
FAR_DATA(CORE, int, far_gpu_id, gp_bridge_gpu_id, (int gpu, uint8_t *ids), 1, NULL, ids, 32, U(gpu), 0)
FAR(CORE, bool, far_watch_windows, gp_bridge_watch_windows, (int gpu), U(gpu))
FAR(CORE, bool, far_blp_wanted, gp_blp_wanted, (void))
FAR(CORE, int, far_blp_set, gp_blp_set, (uint32_t when), U(when))
FAR(CORE, bool, far_is_gone, gp_bridge_is_gone, (int result), U(result))
FAR(CORE, uint64_t, far_refusals, gp_bridge_refusals, (void))
static inline bool far_refused_call(uint32_t lane, void (*function)(void), int of, uint32_t *result, char *text)
{
	struct gp_lane *l = gp_far_begin(lane);
	l->call.argument[0] = U(of);
	l->call.argument[1] = GP_FAR_TEXT; // behind the text
	l->call.in_data = 2;
	l->call.text = 1;
	memset(l->data, 0, GP_FAR_TEXT + sizeof *result);
	gp_far_carry_out(l, function);
	bool is = l->call.result;
	memcpy(text, l->data, GP_FAR_TEXT);
	memcpy(result, l->data + GP_FAR_TEXT, sizeof *result);
	gp_far_end(l);
	return is;
}
static inline bool far_hold_refused(int context, uint32_t *result, char *text)
{
	return far_refused_call(CORE, (void (*)(void))gp_bridge_hold_refused, context, result, text);
}
static inline bool far_blp_refused(int context, uint32_t *result, char *text)
{
	return far_refused_call(CORE, (void (*)(void))gp_bridge_blp_refused, context, result, text);
}

// An agent's look.
static inline bool far_gpu_refused(int gpu, uint32_t *result, char *text)
{
	return far_refused_call(AGENT, (void (*)(void))gp_bridge_gpu_refused, gpu, result, text);
}
FAR(AGENT, uint32_t, far_membership, gp_bridge_membership, (int gpu))
FAR(AGENT, uint32_t, far_rejoined, gp_bridge_rejoined, (int gpu))
FAR(AGENT, uint64_t, far_waits_behind, gp_bridge_gpu_waits_behind, (int gpu), U(gpu))
FAR(AGENT, int, far_doubt, gp_bridge_doubt, (int gpu))
FAR(AGENT, bool, far_renew, gp_runlist_renew, (int gpu), U(gpu))
FAR(AGENT, int, far_runlist_set, gp_bridge_runlist_set, (int gpu, uint32_t client, uint32_t handle, bool on), U(gpu),
    U(client), U(handle), U(on))
FAR_DATA(AGENT, int, far_control, gp_rm_control,
	 (int gpu, int fd, uint32_t client, uint32_t object, uint32_t command, void *p, uint32_t bytes), 4, p, p, bytes,
	 U(fd), U(client), U(object), U(command), 0, U(bytes))
FAR_DATA(AGENT, uint32_t, far_tsgs, gp_rm_tsgs, (int gpu, struct gp_tsg *out, uint32_t capacity), 0, NULL, out,
	 capacity * sizeof *out, 0, U(capacity))
FAR(AGENT, bool, far_gpu_busy, gp_bridge_gpu_busy, (int gpu), U(gpu))
FAR(AGENT, uint64_t, far_gpu_busy_ns, gp_bridge_gpu_busy_ns, (int gpu), U(gpu))
FAR(AGENT, bool, far_gpu_mps, gp_bridge_gpu_mps, (int gpu), U(gpu))
FAR(AGENT, bool, far_gpu_worked, gp_bridge_gpu_worked, (int gpu), U(gpu))
FAR(AGENT, bool, far_gpu_hold_failed, gp_bridge_gpu_hold_failed, (int gpu), U(gpu))
FAR(AGENT, int, far_gpu_probe, gp_bridge_gpu_probe, (int gpu, bool on), U(gpu), U(on))
FAR(AGENT, int, far_gpu_rescind, gp_bridge_gpu_rescind, (int gpu), U(gpu))
FAR(AGENT, int, far_gpu_count_blp, gp_bridge_gpu_count_blp, (int gpu), U(gpu))
FAR_DATA(AGENT, int, far_gpu_peers, gp_bridge_gpu_peers, (int gpu, const struct gp_bridge_peers *p), 1, p, NULL,
	 sizeof *p, U(gpu), 0)
FAR(AGENT, uint64_t, far_gpu_switch_ns, gp_bridge_gpu_switch_ns, (int gpu, uint64_t told), U(gpu), told)

// Memory.
FAR_DATA(AGENT, int, far_read_memory, gp_bridge_read_memory, (int gpu, struct gp_bridge_memory *m), 1, NULL, m,
	 sizeof *m, U(gpu), 0)
FAR(AGENT, int, far_publish_memory, gp_bridge_publish_memory, (int gpu, uint64_t stays), U(gpu), stays)
FAR(AGENT, int, far_elsewhere, gp_memory_elsewhere, (int gpu, uint64_t bytes), U(gpu), bytes)
FAR_DATA(METER, bool, far_memory_free, gp_bridge_memory_free_here, (int gpu, uint64_t *both), 1, NULL, both,
	 2 * sizeof *both, U(gpu), 0)
FAR(METER, uint64_t, far_memory_pools, gp_bridge_memory_pools, (int gpu), U(gpu))
FAR(AGENT, uint32_t, far_memory_pins, gp_bridge_memory_pins, (int gpu), U(gpu))
FAR(AGENT, bool, far_memory_unmanaged, gp_bridge_memory_unmanaged, (int gpu), U(gpu))
FAR(AGENT, bool, far_memory_is_cap, gp_bridge_memory_is_cap, (int gpu, uint64_t total), U(gpu), total)
FAR(AGENT, uint64_t, far_memory_total, gp_bridge_memory_total, (int gpu), U(gpu))
FAR(AGENT, int, far_room_changed, gp_bridge_memory_room_changed, (int gpu, uint64_t most, bool enough), U(gpu), most,
    U(enough))
FAR(AGENT, int, far_memory_allow, gp_bridge_memory_allow, (int gpu, uint64_t bytes), U(gpu), bytes)
FAR(AGENT, int, far_memory_grant, gp_bridge_memory_grant, (int gpu, uint64_t upto), U(gpu), upto)
FAR(AGENT, int, far_memory_hurry, gp_bridge_memory_hurry, (int gpu), U(gpu))
FAR(CORE, int, far_arena_cut, gp_bridge_arena_cut, (bool on), U(on))
FAR(AGENT, int, far_ring, gp_bridge_ring, (int gpu), U(gpu))
FAR(CORE, int, far_away, gp_bridge_away, (bool on), U(on))
FAR(CORE, bool, far_recalled, gp_bridge_recalled, (void))
FAR(GP_LANE_MOVER, int, far_evict, gp_bridge_memory_evict, (int gpu, uint64_t bytes, uint64_t drain_ns, bool urgent),
    U(gpu), bytes, drain_ns, U(urgent))
FAR(GP_LANE_MOVER, int, far_restore, gp_bridge_memory_restore, (int gpu, uint64_t most, bool urgent), U(gpu), most,
    U(urgent))
FAR(GP_LANE_MOVER, bool, far_suspend, gp_bridge_memory_suspend, (bool on, uint64_t timeout_ns), U(on), timeout_ns)
FAR(GP_LANE_MOVER, bool, far_arena_grow, gp_bridge_arena_grow, (int gpu, uint64_t bytes), U(gpu), bytes)
FAR(GP_LANE_MOVER, int, far_arena_trim, gp_bridge_arena_trim, (int gpu, uint64_t bytes), U(gpu), bytes)

// Hints.
static inline void far_hint_start(double max_cost, uint64_t linger_ns, bool copies)
{
	struct gp_lane *l = gp_far_begin(CORE);
	l->call.argument[0] = linger_ns;
	l->call.argument[1] = copies;
	l->call.number[0] = max_cost;
	gp_far_carry_out(l, (void (*)(void))gp_hint_start);
	gp_far_end(l);
}
FAR(CORE, int, far_hints_begin, gp_bridge_start_hints, (uint32_t sources), U(sources))
FAR_DATA(CORE, int, far_nvtx_name, gp_nvtx_name, (uint32_t i, const char *name), 1, name, NULL, strlen(name) + 1, U(i), 0)
FAR_DATA(CORE, int, far_nvtx_name_step, gp_nvtx_name_step, (const char *name), 0, name, NULL, strlen(name) + 1, 0)
FAR(CORE, int, far_nvtx_named, gp_nvtx_named, (void))
FAR(CORE, uint32_t, far_arrivals_count, gp_arrivals_count, (void))
FAR_DATA(CORE, int, far_arrivals_take, gp_arrivals_take, (uint32_t i, struct gp_arrival_taken *to), 1, NULL, to,
	 sizeof *to, U(i), 0)
FAR(CORE, uint32_t, far_announcements_count, gp_announcements_count, (void))
FAR_DATA(CORE, int, far_announcements_take, gp_announcements_take, (uint32_t i, struct gp_announcement_taken *to), 1,
	 NULL, to, sizeof *to, U(i), 0)
FAR(CORE, uint64_t, far_hint_saves_ns, gp_hint_saves_ns, (void))
FAR(CORE, int, far_estimate_set, gp_estimate_set,
    (uint32_t place, uint64_t key, uint64_t delay_ns, uint64_t valid_ns, uint32_t likely), U(place), key, delay_ns,
    valid_ns, U(likely))
FAR(CORE, int, far_connection_likely, gp_connection_likely, (uint32_t fd, uint32_t generation, uint32_t likely), U(fd),
    U(generation), U(likely))
FAR(CORE, int, far_sockets_look, gp_sockets_look, (void))
static inline void far_give_arrival(uint64_t from_ns, uint64_t valid_ns, double confidence)
{
	struct gp_lane *l = gp_far_begin(CORE);
	l->call.argument[0] = from_ns;
	l->call.argument[1] = valid_ns;
	l->call.number[0] = confidence;
	gp_far_carry_out(l, (void (*)(void))gp_give_arrival);
	gp_far_end(l);
}

// The rewriter.
FAR_DATA(CORE, uint64_t, far_request_take, gp_bridge_request_take, (struct gp_bridge_request * r), 0, NULL, r, sizeof *r, 0)
FAR_DATA(GP_LANE_REWRITER, int64_t, far_read, gp_bridge_read, (uint64_t from, void *to, uint64_t bytes), 1, NULL, to,
	 bytes, from, 0, bytes)
FAR_DATA(CORE, int, far_request_answer, gp_given_answer, (const struct gp_bridge_answer *a), 0, a, NULL, sizeof *a, 0)

// The log.
FAR_DATA(CORE, int64_t, far_say, gp_bridge_say, (const char *text, uint64_t bytes), 0, text, NULL, bytes, 0, bytes)
FAR_DATA(GP_LANE_LOG, int64_t, far_write, gp_bridge_write, (const char *text, uint64_t bytes), 0, text, NULL, bytes, 0, bytes)

#endif
