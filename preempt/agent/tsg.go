package agent

import "fmt"

// uuid returns the UUID of the GPU that a TSG belongs to.
func (t TSG) uuid() (uuid [16]byte, err error) {
	p := NV2080_CTRL_GPU_GET_GID_INFO_PARAMS{Flags: NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY}
	if err := control(t, t.subdevice, NV2080_CTRL_CMD_GPU_GET_GID_INFO, &p); err != nil {
		return uuid, fmt.Errorf("get the UUID of subdevice %#x: %w", t.subdevice, err)
	}
	copy(uuid[:], p.Data[:])
	return uuid, nil
}

func (t TSG) setTimeslice(us uint64) error {
	p := NVA06C_CTRL_TIMESLICE_PARAMS{TimesliceUs: us}
	if err := control(t, t.handle, NVA06C_CTRL_CMD_SET_TIMESLICE, &p); err != nil {
		return fmt.Errorf("set the timeslice of TSG %#x to %d us: %w", t.handle, us, err)
	}
	return nil
}
