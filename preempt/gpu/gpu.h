// gpu.h - how the process takes the GPU and gives it up: windows, the hold, MPS, and the resource manager's TSGs.
#ifndef GPREEMPT_GPU_H
#define GPREEMPT_GPU_H

#include "preempt/process/process.h"

// Counts an operation. Returns since when the context had had no work, in ns; 0: it had some, or this is its first, or the program gave
// that time away (lent).
static inline uint64_t gp_window_submit(struct gp_context *c, bool lent)
{
	for (;;) {
		uint64_t word = c->window, since = lent || word & GP_WINDOW_WORKS ? 0 : c->idle_since_ns;
		if (gp_window_change(&c->window, word, GP_SUBMITTED))
			return since;
	}
}

// window.c
uint32_t gp_window_open(struct gp_context *); // returns what gp_window_wake is to be told
void gp_window_wake(struct gp_gpu *, uint32_t wakes);
void gp_window_drop(struct gp_context *);
// A submission ended a gap. awaited_since_ns: since when a hint awaited it; 0: none did.
void gp_note_gap(struct gp_context *, uint64_t idle_since_ns, uint64_t awaited_since_ns);
// One look of the watcher at an open window, under query_lock: nanoseconds to the next, 0: it is closed.
uint64_t gp_window_watch(struct gp_context *, uint64_t now);
// While it is on, this process's window on the GPU is not published: lower levels run. May be on several times.
void gp_gpu_give_way(struct gp_gpu *, bool on);
void gp_gpu_rescind(struct gp_gpu *); // peers came or went: publishes the window, or takes it back
bool gp_gpu_move(struct gp_gpu *, void *memory, uint32_t slot, bool paged, bool owned);
uint64_t gp_gpu_busy_ns(struct gp_gpu *);
void gp_gpu_attached(struct gp_gpu *);       // the segment is there: publishes a window that is open
void gp_gpu_waits(struct gp_gpu *, bool on); // a thread waits at the gate: the process wants to run
void gp_gpu_probe(struct gp_gpu *, bool on); // asks for a turn although no work is known

// switch.c
uint64_t gp_switch_ns(struct gp_gpu *); // what a switch away from a lower level takes: as learnt, as others say, or usually
uint64_t gp_taking_longest_ns(void); // of the GPUs where there are lower levels: a switch, or that they stop (MPS)
uint64_t gp_switch_learnt(struct gp_gpu *);        // 0: not yet
void gp_switch_told(struct gp_gpu *, uint64_t ns); // by others on this GPU, none of which is trusted; 0: by none
// For the watcher. The next switch is to be measured; and one was: it took longer than not_after_ns, and no longer than after_ns.
bool gp_switch_sampled(struct gp_gpu *);
void gp_switch_seen(struct gp_gpu *, uint64_t not_after_ns, uint64_t after_ns);

// gate_share.c
bool gp_gate_enter(struct gp_gpu *, uint64_t now); // false: launches pass for now
bool gp_gate_owes(struct gp_gpu *, uint64_t now);  // whether they do by now
void gp_gate_leave(struct gp_gpu *, uint64_t now);

// hold.c
bool gp_holds(struct gp_context *); // a hold is to keep the GPU while a window is open
const char *gp_hold_unwanted(void); // why no hold can be used in this process; NULL: it can
CUresult gp_hold_prepare(struct gp_context *, const char **call); // loads the kernel; slow, not on the launch path
void gp_hold_arm(struct gp_context *);
void gp_hold_release(struct gp_context *);
// Ends the hold, also one that another thread is arming. While context_waits is raised, none runs after this.
void gp_hold_end(struct gp_context *);
void gp_hold_forget(struct gp_context *);   // the context ends; context_waits is raised
void gp_hold_put_back(struct gp_context *); // it goes on after all
// The watcher looks, under query_lock: nanoseconds to the next look.
uint64_t gp_hold_look(struct gp_context *, uint64_t now, bool unfinished);
void gp_hold_step(struct gp_context *);
void gp_hold_settle(struct gp_context *);
void gp_hold_yield(struct gp_context *);
// A link of the armed chain runs or has run.
static inline bool gp_hold_begun(const struct gp_hold *h)
{
	return h->state == GP_HOLD_ARMED && (int32_t)(h->word[GP_HOLD_BEGUN] - h->chain) >= 0;
}
enum gp_fit {
	GP_FITS,
	GP_SPREADS, // takes another wave of blocks
	GP_BLOCKED, // cannot run at all: all blocks must be resident at once
};
enum gp_fit gp_hold_fit(struct gp_context *, const struct gp_launch *);
static inline bool gp_hold_usable(struct gp_context *c)
{
	uint32_t state = __atomic_load_n((uint32_t *)&c->hold.state, __ATOMIC_ACQUIRE);
	return state != GP_HOLD_ABSENT && state != GP_HOLD_FAILED;
}

// graph_fit.c
void gp_graph_instantiated(CUgraphExec, CUgraph, bool waits); // waits: gp_graph_waits_for_cpu will be asked
enum gp_fit gp_graph_fit(CUgraphExec);
bool gp_graph_waits_for_cpu(CUgraphExec); // true also where that is not known
bool gp_graphs_record(void);              // some graph records events, or may

// mps.c
void gp_mps_lower_client(void);     // before the driver is initialised
extern _Atomic bool gp_mps_lowered; // by that call, or by the user: the priority of this client is below normal
bool gp_mps_server_runs(void);      // a daemon has left its socket where this process would look for one
bool gp_stream_creating(int *priority);
void gp_stream_created(CUstream, int asked_priority);
void gp_stream_priority(CUstream, int *priority);
void gp_stream_has_priority(CUstream); // from here on the one that the driver says

// runlist.c
// Takes a TSG off the runlist of a GPU or puts it back. A TSG that is off comes back by itself 1.5 s after the last gp_runlist_set or
// gp_runlist_renew of the GPU. Returns the RM status, or -1 when the ioctl failed.
int gp_runlist_set(int gpu, uint32_t client, uint32_t handle, bool on);
bool gp_runlist_renew(int gpu);         // false once after TSGs came back by themselves, with the fair timeslice
uint64_t gp_runlist_look(uint64_t now); // one look of the thread; nanoseconds to the next, 0: nothing is off
void gp_runlist_fair(void);             // gives the process's TSGs the fair timeslice, where timeslices are set
void gp_runlist_guard(void);            // the thread's body; never returns

#endif
