// objects.h - what is known of objects of the program, by their handles: its streams, instances of graphs, and events.
//
// A table for each kind. A thread that has a handle looks without a lock. Facts that several threads write have the table's lock, or are
// atomic. An object ends in one place (gp_ending in preempt/lifecycle.c), and all that is known of it with it. So the next object to which
// the driver gives the handle begins with nothing known. While a thread holds a table's lock, no object of the kind ends.
//
// The driver may refuse a call that destroys an object, and behind a successful call the handle may be another object's. So the object is
// set apart before the call: no thread finds it any more. Behind the call it ends, or is put back.
//
// Not here, since launches look there with one or two loads: the places of contexts (gp_context), a context's streams with work
// (gp_context.stream), and a domain's (gp_domain.stream_of). Nor are kernels: no call says which of them end.
// Their tables are emptied as a whole (preempt/code/handles.h, preempt/process/first_launch.c). Modules and libraries are in
// preempt/code, which alone asks for them.
#ifndef GPREEMPT_OBJECTS_H
#define GPREEMPT_OBJECTS_H

#include "preempt/driver/hooks.h"

struct blp_twin;
struct gp_domain;

// The latest record of an event, for block-level preemption (preempt/blp/event.c). With the events' lock.
struct gp_event_record {
	bool known;
	bool shared;       // other processes see it
	bool host_blocked; // it was recorded behind a host block
	bool captured;     // it was recorded on a captured stream
	uint16_t stream;
	CUcontext context;        // the event's, or, of a green one, the whole context
	struct gp_domain *domain; // NULL: not recorded in the log
	uint64_t upto;            // sequence + 1 of its entry
};

struct gp_object {
	_Atomic(void *) handle;     // NULL: never used, a search ends here
	_Atomic(CUcontext) context; // of a stream, since default streams have the same handle in each; else NULL
	CUcontext of;               // that, while it is set apart
	uint32_t apart;             // calls under way that destroy it, or its context
	uint32_t users;             // threads that use it without the lock: until they are done it does not end
	union {
		struct {
			_Atomic bool lowered; // it was made with another priority than the program asked for (preempt/gpu/mps.c)
			_Atomic int asked;                // that one
			struct gp_domain *_Atomic domain; // its own (preempt/blp/domain.c); NULL: it is in its context's
		} stream;
		struct {                          // An instance of a graph.
			_Atomic bool free_of_cpu; // It does not wait for the CPU.
			_Atomic bool blocked;     // A hold would keep it from running.
			// The contexts where it was launched since code was last unloaded: one bit for each place in gp_context.
			_Atomic uint64_t launched;
			_Atomic uint32_t kernels; // How many nodes had got new kernels then (preempt/process/first_launch.c).
			CUcontext context;        // The context in which it was made; NULL: not known.
			struct blp_twin *_Atomic twin; // The twin that is launched in its place (preempt/blp/graph.c); NULL: none.
		} graph;
		struct gp_event_record event;
	};
};

// NULL: it is not known. Without a lock.
struct gp_object *gp_object_find(enum gp_thing, const void *handle, CUcontext);

void gp_objects_lock(enum gp_thing);
void gp_objects_unlock(enum gp_thing);
bool gp_object_begin(enum gp_thing, void *handle, CUcontext); // the driver has made it; false: there is no place
// With the lock. The object, new if it was not known; NULL: there is no place.
struct gp_object *gp_object_enter(enum gp_thing, void *handle, CUcontext);
// With the lock. The next one in the table, or the first; NULL: these were all.
struct gp_object *gp_objects_next(enum gp_thing, const struct gp_object *before);
struct gp_object *gp_objects_of(enum gp_thing, const void *handle, const struct gp_object *before); // in any context

// Around calls of the driver that may wait for other threads. The first gives the lock up, the second takes it.
void gp_object_use(enum gp_thing, struct gp_object *);
void gp_object_leave(enum gp_thing, struct gp_object *);

// These wait for the threads that use the object, in all contexts.
void gp_object_end(enum gp_thing, const void *handle);
void gp_object_set_apart(enum gp_thing, const void *handle); // the driver is about to be asked to destroy it
void gp_objects_set_apart(CUcontext);                        // or the context of these streams, events and graphs
// is: the driver has destroyed it, and it ends. Else it is put back.
void gp_object_destroyed(enum gp_thing, const void *handle, bool is);
void gp_objects_destroyed(CUcontext, bool is);

// Puts the nodes of a graph into an order in which they may run one after the other; the driver promises none. False: memory is missing, or
// the driver refuses, as it does if edges do more than order two nodes. A kernel that may begin before the one ahead ends would run though
// that was cut.
bool gp_graph_order(CUgraph, CUgraphNode *nodes, size_t count);

static inline struct gp_object *gp_graph_find(CUgraphExec exec)
{
	return gp_object_find(GP_GRAPH_INSTANCE, exec, NULL);
}

#endif
