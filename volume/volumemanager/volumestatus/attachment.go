package volumestatus

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// AttachmentError is of a volume that waits for a report, or was detached while it is mounted.
type AttachmentError struct {
	// Volume is the volume's unique name, which reports are about.
	Volume v1.UniqueVolumeName
	// Node is this node's name.
	Node string
	// ReportedInUse: the node's status lists it; see Manager.ReportedInUse.
	ReportedInUse bool
	// Attached: it is reported attached; see Manager.SetVolumesAttached.
	Attached bool
	// Mounted: it is mounted here.
	Mounted bool
	// Err is why it is not attached, by its plugin; nil: that takes its time. The text lacks it.
	Err error
}

func (e *AttachmentError) Error() string {
	switch {
	case e.Mounted:
		return fmt.Sprintf("%s is mounted, but not reported attached to node %s any more; it is left as it is: find out who detached it, and whether the pod can still read its data", e.Volume, e.Node)
	case e.ReportedInUse:
		return fmt.Sprintf("%s waits to be reported attached to node %s", e.Volume, e.Node)
	case e.Attached:
		return fmt.Sprintf("%s waits until the status of node %s lists it in use", e.Volume, e.Node)
	}
	return fmt.Sprintf("%s waits until the status of node %s lists it in use, and to be reported attached", e.Volume, e.Node)
}

// Unwrap returns the plugin's reason.
func (e *AttachmentError) Unwrap() error { return e.Err }

// waits says which reports are missing.
func (e *AttachmentError) waits() string {
	switch {
	case e.ReportedInUse:
		return fmt.Sprintf("%s to be reported attached to node %s", e.Volume, e.Node)
	case e.Attached:
		return fmt.Sprintf("the status of node %s to list %s in use", e.Node, e.Volume)
	}
	return fmt.Sprintf("the status of node %s to list %s in use, and for it to be reported attached", e.Node, e.Volume)
}
