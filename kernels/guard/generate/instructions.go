package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"github.com/gpreempt/gpreempt/patch"
)

const instructionSize = 16

// instruction is one of 128 bits, as in memory.
type instruction [instructionSize]byte

// Opcodes: the low 12 bits of an instruction, of which 9 to 11 say where operands come from. The
// predicate is in [15:12]; 7 means always.
const (
	opEXIT    = 0x94d
	opBRA     = 0x947
	opNOP     = 0x918
	opPMTRIG  = 0x801
	opMOVLow  = 0x002 // in [8:0], whatever the operands
	opIMADLow = 0x024
	opLDCLow  = 0x182
)

// Scheduling information, in [125:105]: stall [3:0], yield [4], the barriers set by the write [7:5] and
// the read [10:8] (7: none), the barriers waited for [16:11], and reuse flags.
const (
	controlShift = 105 - 64
	stall15      = uint64(15) << controlShift
	barriersNone = uint64(0x3f) << (controlShift + 5)
	waitForAll   = uint64(0x3f) << (controlShift + 11)
)

func (i instruction) low() uint64  { return binary.LittleEndian.Uint64(i[:]) }
func (i instruction) high() uint64 { return binary.LittleEndian.Uint64(i[8:]) }

func assemble(low, high uint64) (i instruction) {
	binary.LittleEndian.PutUint64(i[:], low)
	binary.LittleEndian.PutUint64(i[8:], high)
	return i
}

// Places in guard.cu that PMTRIG marks: its operand, in [63:32], has bit n set for event n.
const (
	markEnd     = 1 << 0
	markPadding = 1 << 1
)

// body takes the guard out of one compiled variant.
//
// PMTRIG becomes a NOP. The last one, where the guarded kernel begins, waits for everything that the guard has under way:
// the kernel expects no pending scoreboard. The first instruction sets the stack pointer. The guard does not use it and
// the kernel sets it by itself, on some architectures only later, so that instruction is removed.
func body(code []byte) ([]instruction, error) {
	var all []instruction
	for ; len(code) >= instructionSize; code = code[instructionSize:] {
		all = append(all, instruction(code[:instructionSize]))
	}
	end := -1
	for n, i := range all {
		if i.low()&0xfff != opPMTRIG {
			continue
		}
		switch i.low() >> 32 {
		case markPadding:
			all[n] = assemble(opNOP|7<<12, i.high()>>controlShift<<controlShift)
		case markEnd:
			if end >= 0 {
				return nil, errors.New("two ends")
			}
			end = n
		default:
			return nil, fmt.Errorf("unexpected PMTRIG %x", i)
		}
	}
	if end < 1 || end+2 >= len(all) || all[end+1].low()&0xffff != opEXIT|7<<12 || all[end+2].low()&0xffff != opBRA|7<<12 {
		return nil, errors.New("does not end in PMTRIG, EXIT, BRA")
	}
	if !setsStackPointer(all[0]) {
		return nil, fmt.Errorf("first instruction %x does not set the stack pointer", all[0])
	}
	all[end] = assemble(opNOP|7<<12, barriersNone|waitForAll|stall15)
	return all[1 : end+1], nil
}

// setsStackPointer recognises MOV, IMAD.MOV and LDC to R1 from constant bank 0, unpredicated.
func setsStackPointer(i instruction) bool {
	switch i.low() & 0x1ff {
	case opMOVLow, opIMADLow, opLDCLow:
		return i.low()>>12&0xf == 7 && i.low()>>16&0xff == 1
	}
	return false
}

// compare finds where the variants of one instruction hold their parameter's offset. shift is -1 if all variants are the
// same. code is the instruction with 0 in that place.
func compare(variants []instruction, entries []patch.Description) (code instruction, shift int, err error) {
	first, equal := variants[0], true
	for _, v := range variants {
		equal = equal && v == first
	}
	if equal {
		return first, -1, nil
	}
	for shift := range patch.MaxFieldShift + 1 {
		code := assemble(first.low()^uint64(hiddenOffset(entries[0]))<<shift, first.high())
		matches, changed := code.low()&(0xfff8<<shift) == 0, uint32(0)
		for k, v := range variants {
			offset := hiddenOffset(entries[k])
			matches = matches && v == assemble(code.low()|uint64(offset)<<shift, code.high())
			changed |= offset ^ hiddenOffset(entries[0])
		}
		if !matches {
			continue
		}
		if bits.OnesCount32(changed&0xfff8) != 13 {
			return code, 0, fmt.Errorf("the variants' offsets differ in %#x only", changed)
		}
		return code, shift, nil
	}
	return code, 0, errors.New("the variants differ in more than an offset")
}
