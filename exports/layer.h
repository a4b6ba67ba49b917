// layer.h - shared by the C files of exports/.
#ifndef GPREEMPT_LAYER_H
#define GPREEMPT_LAYER_H

#define _GNU_SOURCE
#include <link.h>
#include <stdatomic.h>

// Only the names in exports.map leave the library. Hidden symbols also need no GOT on the fast path.
#pragma GCC visibility push(hidden)
#include "exports/exports.h"

// As table.h names them. They are passed by value, so their sizes and classes are part of the ABI.
typedef struct gp_ipc_handle CUipcMemHandle, CUipcEventHandle;
typedef struct gp_location CUmemLocation;
typedef struct gp_egl_frame CUeglFrame;

#define likely(x) __builtin_expect(!!(x), 1)
#define OUTLINED __attribute__((noinline))
#define COLD __attribute__((noinline, cold)) // also made small, not fast
#define PUBLIC __attribute__((visibility("default")))

// A call that must keep the caller's return address: libc derives from it which library asks (RTLD_NEXT, RUNPATH, namespaces).
// gcc makes it a jump at -O2.
#if defined(__has_attribute) && __has_attribute(musttail)
#define TAIL __attribute__((musttail)) return
#else
#define TAIL return
#endif

#define ROW(kind, name, default_stream, params, ...) PUBLIC CUresult name params;
#define CALLED(name, params) CUresult name params;
#include "exports/table.h"

enum gp_row {
#define ROW(kind, name, ...) ROW_OF_##name,
#define CALLED(name, params) ROW_OF_##name,
#include "exports/table.h"
	GP_ROWS
};

// The functions that intercepted ones call, one for each row. At first a slot holds a function that resolves all of them. Then it holds
// the driver's function, one that returns CUDA_ERROR_NOT_FOUND, or one in place of the driver's (gp_substitute).
extern _Atomic(void *) gp_real[GP_ROWS];
#define REAL(name) ((typeof(&name))atomic_load_explicit(&gp_real[ROW_OF_##name], memory_order_relaxed))

// state.c, which all other files may use and which uses none
bool gp_active(void);               // False: the process has no role, and nothing is substituted or started.
bool gp_forked(void);               // True in a child that was forked after the core was started.
void gp_complain(const char *what); // One line to standard error, unless GPREEMPT_LOG is off.
void gp_pass_all(void);             // In a forked child: the driver gets everything from here on.
// The program asks for a function of the driver that table.h lacks and that may put work on streams.
void gp_note_unknown(const char *name);
extern _Atomic(const struct gp_socket_hooks *) gp_installed_socket_hooks;
extern _Atomic(const struct gp_hooks *) gp_installed_hooks;
static inline const struct gp_hooks *gp_current_hooks(void)
{
	return atomic_load_explicit(&gp_installed_hooks, memory_order_acquire);
}

void gp_note_stream(CUstream); // see stream_made of the hooks; state.c

// A call of the program that may wait. The core's hooks hear of its begin and end, while the core wants to know.
struct gp_call {
	const struct gp_hooks *hooks; // NULL: there are none
	enum gp_wait wait;
	bool told;
};

static inline struct gp_call gp_call_begin(enum gp_wait wait, void *object)
{
	struct gp_call call = {.hooks = gp_current_hooks(), .wait = wait};
	call.told = call.hooks && atomic_load_explicit(&gp_armed, memory_order_relaxed);
	if (call.told)
		call.hooks->begin_wait(wait, object);
	return call;
}

static inline CUresult gp_call_end(struct gp_call call, CUresult result)
{
	if (call.told)
		call.hooks->end_wait(call.wait, NULL, result);
	return result; // the core's answer matters only to calls that the program makes to wait
}

// A call of the driver, repeated while it is out of memory and the core finds room on the device. hooks may be NULL.
#define WITH_ROOM(hooks, device, call) \
	({ \
		struct gp_retry retry_ = {0}; \
		CUresult result_; \
		do \
			result_ = call; \
		while (gp_made_room(hooks, &retry_, device, result_)); \
		result_; \
	})

static inline bool gp_made_room(const struct gp_hooks *hooks, struct gp_retry *retry, CUdevice device, CUresult result)
{
	if (__builtin_expect(result == CUDA_ERROR_OUT_OF_MEMORY, 0))
		return hooks && hooks->refused_memory(retry, device);
	if (__builtin_expect(retry->claim, 0))
		hooks->call_over(retry);
	return false;
}

// names.c
bool gp_may_submit(const char *name); // whether a function of that name may put work on streams

// objects.c, which calls nothing
void *gp_symbol_of_libc(const char *name); // NULL: not there
bool gp_object_defines(ElfW(Addr) base, const ElfW(Dyn) * dynamic, const char *name);

// real.c
typedef void *gp_dlsym_fn(void *, const char *);
typedef void *gp_dlvsym_fn(void *, const char *, const char *);
typedef void *gp_dlopen_fn(const char *, int);
// Of the library that comes next in the order of lookups: libc's own, unless another one intercepts too.
gp_dlsym_fn *gp_next_dlsym(void);
gp_dlvsym_fn *gp_next_dlvsym(void);
gp_dlopen_fn *gp_next_dlopen(void);
bool gp_lookups_are_libcs(void);
void *gp_next_symbol(const char *name); // in the libraries after ours, as libc answers; NULL: not found
// Whether the caller's object comes before ours in the order of lookups, and none in between defines the name.
bool gp_is_ahead(const void *caller, const char *name);
bool gp_is_ours(const void *address); // inside this library
// Finds all functions of the driver, which is loaded if load says so. False: there is no driver.
bool gp_resolve(bool load);
// After gp_resolve:
enum gp_row gp_row_of(const void *function); // GP_ROWS: the driver's function has none
bool gp_driver_has(enum gp_row);
void *gp_own(enum gp_row); // the driver's own, if another library stands in front of it, or NULL.
bool gp_calls_back(const void *caller, enum gp_row); // the caller is that library, and asks for the driver's.
// This function stands in front of the driver's. If another one is known already, that one stays.
void gp_set_next(enum gp_row, void *function);
void gp_drop_substitutes(void); // the driver's functions are called again
extern const char *const gp_row_name[GP_ROWS];

// say.c
void gp_find_stderr(void); // as the library is loaded

// libc.c
void gp_find_libc(void); // finds what its functions call

// start.c
void gp_start(void); // starts the core, once

// environment.c
void gp_keep_environment(void); // as the library is loaded
char **gp_kept_environment(void);

#pragma GCC visibility pop
#endif
