// pins.h - the one list of reasons why a range is not evicted. The includer defines PIN(NAME, sentence), which is undefined at
// the end; the log says the sentence where the first range is pinned for that reason. NULL: nothing to say.

PIN(EXPORTED, "another process may have a handle of it")
PIN(IMPORTED, "it is another process's")
PIN(REGISTERED, "a device on the bus may know its physical pages")
PIN(MULTICAST, "it is bound to a multicast object or a logical endpoint")
PIN(SHARED, "its handle is mapped more than once, or in part")
PIN(CLOSED, NULL) // its own GPU may not read and write it, so it cannot be copied; often only for now

#undef PIN
