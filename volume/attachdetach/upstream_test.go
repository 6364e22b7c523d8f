package attachdetach_test

// The tests of Kubernetes' controller (pkg/controller/volume/attachdetach of v1.37.2), and what
// tries the same here:
//
//	reconciler   DoNothing                                    TestAnIdleControllerAsksNothing
//	             OneDesiredVolumeAttach, …ThenDetach…         TestAVolumeIsAttachedMountedAndDetached
//	             …WithMountedVolume, …TimeoutNodes…           TestTimeDetachesOnlyWhereItIsToldTo
//	             …UpdateStatusFail, UpdateNodeStatusFail…     TestAStatusThatCannotBeWrittenKeepsTheVolume
//	             …MultipleNodesWithReadWriteMany              TestASharedVolumeIsAttachedToAllNodes
//	             …MultipleNodesWithReadWriteOnce              TestAVolumeForOneNodeMovesOnceTheFirstHasLetItGo
//	             …UncertainNodes…                             TestAVolumeThatMayBeAttachedIsAttachedNowhereElse
//	             OneVolumeDetachFail…                         TestAFailedDetachIsTold
//	             …OutOfServiceTaintedNode, …NoOutOf…          TestOnlyAFencedNodeIsNotWaitedFor
//	             …UnhealthyNode, …ForceDetach…Disabled        TestTimeDetachesOnlyWhereItIsToldTo
//	             ReportWaitingOnDetach (5 cases)              TestPodsOfOtherNamespacesAreNotNamed, TestAVolumeForOneNodeMoves…
//	controller   StateOfWorldPopulators, Recovery             TestWhatIsLeftIsDetachedAtTheNextStart, TestWhatAnotherControllerListedIsTakenOver
//	             VolumeAttachmentRecovery (4 cases)           the same, and TestTranslatedVolumesAreAttached
//	             PodDelete_Tombstone                          none: a watch has names only
//	populator    FindAndAddActivePods, …RemoveDeletedPods     TestAPodThatHasEndedGivesItsVolumeUp, TestControllerConverges
//	             FindAndRemoveNonattachableVolumes            TestADriverThatCeasesToNeedAttachingLeavesNothing
//	status       TwoNodesUpdate, FailureInFirstUpdate         TestAStatusThatCannotBeWrittenHoldsUpNoOtherNode
//	             UpdateNodeStatusForNode                      TestAStatusThatCannotBeWrittenKeepsTheVolume
//	util         CreateVolumeSpec (4 cases)                   TestTranslatedVolumesAreAttached, TestAnInlineVolumeOfAPluginIsListed
//	metrics      VolumesInUse, TotalVolumes                   TestStatsCountVolumesByPlugin
//	caches       65 of their bookkeeping                      none: the objects of the API are all that is kept
//
// These differ:
//
//   - The taint out-of-service on a node that is Ready is not heeded: that node may write.
//   - Time alone detaches only where Config.DetachAfter says so. It is counted from when the
//     controller has seen that the node ceased to be Ready, and not from when a pod went.
//   - ReadOnlyMany beside ReadWriteOnce lets no second node have a volume. Upstream leaves it to
//     the driver, and drivers' external-attachers refuse such a PersistentVolume.
//   - A VolumeAttachment that is not named as a controller would name it is not detached.
//     Upstream looks at no names, and at VolumeAttachments only when it starts.
//   - A plugin's volume gets a VolumeAttachment, too, but for an inline one. Upstream has the
//     node's list only.
//   - A volume whose detaching fails is not given back to its node: what is being deleted stays
//     so. A pod that comes back there waits.
//   - A pod is told why an in-tree volume is not attached to a node whose CSINode does not say that
//     it translates it. Upstream logs that it has no plugin. What is attached there stays.

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/volume/objects/objectstest"
)

// An attempt that has failed may have attached the volume: no other node gets it before it is
// detached from the first.
func TestAVolumeThatMayBeAttachedIsAttachedNowhereElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, "a")
		w.setAttaching("a", errors.New("the driver has not answered"))
		w.addPod("p", "n0", "a")
		w.settle()
		w.addPod("q", "n1", "a")
		w.settle()
		w.wantAttachments("a@n0")
		w.wantListed("n0")
		w.wantEvent("q: Warning FailedAttachVolume", "Multi-Attach error", "node n0 has it")
		w.backend.attach("a", "n0") // it had, and was late
		w.setAttaching("a", nil)
		w.deletePod("p")
		w.settle()
		w.wantAttachments("a@n1+")
	})
}

// The status of one node that cannot be written holds up no other node.
func TestAStatusThatCannotBeWrittenHoldsUpNoOtherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, "a", "b")
		mend := w.client.Inject(fault.Fault[objectstest.Call]{Err: errLost,
			Match: func(c objectstest.Call) bool { return onCall("update status", "Node")(c) && c.Ref.Name == "n0" }})
		w.addPod("p", "n0", "a")
		w.addPod("q", "n1", "b")
		w.settle()
		w.wantListed("n0")
		w.wantListed("n1", uniqueName("b"))
		mend()
		w.settle()
		w.wantListed("n0", uniqueName("a"))
	})
}
