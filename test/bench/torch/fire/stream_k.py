"""A matrix product by stream-K in Triton: the programs share all steps of all tiles evenly; who does the last step of a
tile waits for the programs before it that did the others, and adds in their order. c = a b + c / 2."""
import triton
import triton.language as tl


@triton.jit
def stream_k(a_ptr, b_ptr, c_ptr, partial_ptr, flag_ptr, total, steps_each, order,
             SIDE: tl.constexpr, DEPTH: tl.constexpr):
    program, programs = tl.program_id(0), tl.num_programs(0)
    begin = (total * program) // programs
    end = (total * (program + 1)) // programs
    lines = tl.arange(0, SIDE)
    depths = tl.arange(0, DEPTH)
    square = lines[:, None] * SIDE + lines[None, :]
    while begin < end:
        tile = begin // steps_each
        first = tile * steps_each
        last = first + steps_each
        stop = tl.minimum(end, last)
        rows = tile // (order // SIDE) * SIDE + lines
        columns = tile % (order // SIDE) * SIDE + lines
        sums = tl.zeros((SIDE, SIDE), dtype=tl.float32)
        for step in range(begin, stop):
            depth = (step - first) * DEPTH + depths
            a = tl.load(a_ptr + rows[:, None] * order + depth[None, :])
            b = tl.load(b_ptr + depth[:, None] * order + columns[None, :])
            sums = tl.dot(a, b, sums)
        if stop < last:
            # The program that does the tile's last step adds this.
            tl.store(partial_ptr + program * SIDE * SIDE + square, sums)
            tl.debug_barrier()
            tl.atomic_xchg(flag_ptr + program, 1)
        else:
            other = tl.where(begin > first, ((first + 1) * programs - 1) // total, program)
            before = tl.zeros((SIDE, SIDE), dtype=tl.float32)
            while other < program:
                while tl.atomic_cas(flag_ptr + other, 1, 1) != 1:
                    pass
                tl.debug_barrier()
                before += tl.load(partial_ptr + other * SIDE * SIDE + square, cache_modifier=".cg")
                other += 1
            at = c_ptr + rows[:, None] * order + columns[None, :]
            tl.store(at, before + sums + tl.load(at) / 2)
        begin = stop
