package agent

import "unsafe"

// Resource manager controls, from NVIDIA's open-gpu-kernel-modules. Every one takes the resource
// manager's locks for 150 to 900 us: they belong into agents, never on a launch path.
const (
	NVA06C_CTRL_CMD_SET_TIMESLICE                 = 0xa06c0103 // ctrl/ctrla06c.h
	NVA06C_CTRL_CMD_GET_TIMESLICE                 = 0xa06c0104
	NV2080_CTRL_CMD_GPU_GET_GID_INFO              = 0x2080014a // ctrl/ctrl2080/ctrl2080gpu.h
	NV2080_CTRL_CMD_GPU_GET_COMPUTE_POLICY_CONFIG = 0x20800195

	NV2080_GPU_MAX_GID_LENGTH                      = 0x100
	NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY = 2

	NV2080_CTRL_GPU_COMPUTE_POLICY_TIMESLICE       = 0
	NV2080_CTRL_GPU_COMPUTE_POLICY_CONFIG_LIST_MAX = 32
	NV2080_CTRL_CMD_GPU_COMPUTE_TIMESLICE_DEFAULT  = 0
)

const ( // nvstatuscodes.h
	NV_ERR_INVALID_CHANNEL       = 0x21
	NV_ERR_INVALID_OBJECT_HANDLE = 0x33
	NV_ERR_INVALID_OBJECT_PARENT = 0x36
	NV_ERR_OBJECT_NOT_FOUND      = 0x57
)

// NVA06C_CTRL_TIMESLICE_PARAMS is in microseconds; the hardware rounds down.
type NVA06C_CTRL_TIMESLICE_PARAMS struct {
	TimesliceUs uint64
}

// NV2080_CTRL_GPU_GET_GID_INFO_PARAMS returns the UUID of the GPU of a subdevice, where that is a slice too.
type NV2080_CTRL_GPU_GET_GID_INFO_PARAMS struct {
	Index  uint32
	Flags  uint32
	Length uint32
	Data   [NV2080_GPU_MAX_GID_LENGTH]uint8
}

// NV2080_CTRL_GPU_GET_COMPUTE_POLICY_CONFIG_PARAMS returns what nvidia-smi compute-policy has set. The driver keeps it for libcuda, which
// sets the timeslice of a TSG by it as it makes one.
type NV2080_CTRL_GPU_GET_COMPUTE_POLICY_CONFIG_PARAMS struct {
	NumConfigs uint32
	ConfigList [NV2080_CTRL_GPU_COMPUTE_POLICY_CONFIG_LIST_MAX]struct{ Type, Timeslice uint32 }
}

var (
	_ [8 - unsafe.Sizeof(NVA06C_CTRL_TIMESLICE_PARAMS{})]byte
	_ [268 - unsafe.Sizeof(NV2080_CTRL_GPU_GET_GID_INFO_PARAMS{})]byte
	_ [260 - unsafe.Sizeof(NV2080_CTRL_GPU_GET_COMPUTE_POLICY_CONFIG_PARAMS{})]byte
)
