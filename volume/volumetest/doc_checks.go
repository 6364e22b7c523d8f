// # The checks
//
//   - contract/plugin-name: GetPluginName returns a qualified name, such as "example.com/archive", which never changes. (on the fake only)
//   - contract/init: Init does no I/O and needs no role: a role is asked for when a pod needs it, so that a host without it can serve everything else. (on the fake only)
//   - contract/can-support: CanSupport is true for the plugin's own kind of source, judged by the kind only, and it and everything else that looks at a spec does no I/O. (on the fake only)
//   - contract/volume-name: GetVolumeName returns the same name for every spec that means the same data, however often it is asked, also of another instance: a name of the source, whatever the volume is called. Where each pod has data of its own, the volume's name may be part of it; a PersistentVolume's may be all of it. (on the fake only)
//   - contract/foreign-specs: A spec that is nil, empty or of another plugin (of any kind of source of which the suite has no case) is not supported, and is refused with an error and without a panic. (on the fake only)
//   - contract/missing-pod: NewMounter refuses a pod that is missing or has no UID. (on the fake only)
//   - contract/refused: What is invalid is refused before anything is touched, by an error that says so and that leads to what is wrong.
//   - contract/arguments: A plugin never changes its arguments: spec, pod and options are as before once the volume was set up, refreshed and torn down.
//   - contract/access-modes: GetAccessModes returns what the kind of storage can do: at least one mode, each known to the API and named once, in a slice of the caller's own. (on the fake only; of every PersistentVolumePlugin)
//   - contract/descriptions: DescribeSource and DependsOn answer the same for equal specs, do no I/O, and tolerate specs of other plugins. (on the fake only)
//   - lifecycle/setup: SetUp makes the volume appear at GetPath, whose parents it creates, with its contents, modes, owner and mount options.
//   - lifecycle/setup-at-existing-directory: SetUp works on a directory that is there already, as after a crash, and TearDown removes it.
//   - lifecycle/setup-at: SetUp is SetUpAt with GetPath, and TearDown is TearDownAt with GetPath.
//   - lifecycle/setup-n-times: SetUp is idempotent: on a volume that is set up already it succeeds, and mounts nothing a second time.
//   - lifecycle/refresh: Another SetUp shows what the volume's objects contain by then.
//   - lifecycle/read-only: What a spec asks for read-only is called so by GetAttributes and mounted so; what is mounted read-only cannot be written to, and other volumes can.
//   - lifecycle/teardown: TearDown unmounts the volume and removes its directory and what the plugin keeps beside it, also what a pod wrote into a volume of its own.
//   - lifecycle/teardown-n-times: TearDown is idempotent.
//   - lifecycle/teardown-never-set-up: What was never set up is torn down with success, and the source stays as it is.
//   - lifecycle/setup-again: A volume that was torn down can be set up again.
//   - lifecycle/several-pods: Several pods have volumes of the same source at a time; each sees what it must, and the teardown of one leaves the others.
//   - lifecycle/several-volumes: A pod has several volumes of a plugin at a time, and the teardown of one leaves the others.
//   - lifecycle/source-kept: Data outside the node's own directories is never removed or changed by TearDown.
//   - restart/from-record: After a restart, another instance goes on with the spec from the volume's record: SetUp finds the volume as it is, TearDown removes it.
//   - restart/reconstructed: Without a record, ConstructVolumeSpec rebuilds from name, directory and mount table a spec that suffices to tear the volume down.
//   - restart/complete: A rebuilt spec that is called complete equals the original, and mounts the same volume again: it has the same volume name, SetUp finds the volume as it is, and after TearDown SetUp asks the same of mounter and roles.
//   - restart/nothing-left: ConstructVolumeSpec of a volume of which an empty directory or nothing is left is not called complete unless nothing was guessed, and tearing it down succeeds.
//   - restart/rebooted: After a reboot, which takes all mounts and leaves directories and files, SetUp makes the volume appear again and TearDown leaves nothing.
//   - faults/setup-retried: Whichever call fails during SetUp, another SetUp succeeds, and TearDown leaves nothing.
//   - faults/setup-torn-down: Whichever call fails during SetUp, TearDown puts right what it left.
//   - faults/nothing-done: Where SetUp fails with an error that is marked by NothingDone, it left neither mount, directory nor file.
//   - faults/refresh: Whichever call fails during another SetUp, a volume that is in use stays as it is.
//   - faults/teardown-retried: Whichever call fails during TearDown, either nothing is left, or there is an error and another TearDown succeeds.
//   - faults/teardown-set-up: Whichever call fails during TearDown, the volume can be set up again.
//   - faults/cause: An error keeps its cause, so that errors.Is finds it.
//   - faults/retry-at: After many failures in a row, and many calls that hang, an error that says when to try again names a time within the hour, and SetUp succeeds once the trouble is over, at that time or soon after.
//   - crash/setup-set-up: At whichever call the process dies during SetUp, SetUp of a new process succeeds.
//   - crash/setup-torn-down: At whichever call the process dies during SetUp, TearDown of a new process leaves nothing.
//   - crash/teardown-set-up: At whichever call the process dies during TearDown, SetUp of a new process succeeds.
//   - crash/teardown-torn-down: At whichever call the process dies during TearDown, TearDown of a new process leaves nothing.
//   - cancel/before: A context that has ended before the call is an error that wraps its cause, unless nothing was left to do that could block; the volume can be set up and torn down afterwards.
//   - cancel/during: When the context ends during SetUp or TearDown, at whichever call, the volume can be set up and torn down afterwards.
//   - cancel/hang: When a call hangs for ever, at whichever call, SetUp and TearDown return when their context ends, and no goroutine is left once the call returns.
//   - cancel/all-hangs: When every call hangs from some call on, SetUp and TearDown return half a minute after their context ended at the latest, and recover once calls return again.
//   - concurrency/pods: A plugin is used from several goroutines at a time: several pods set up and tear down volumes of one source at once. Calls for one volume of one pod never overlap: the caller makes them one after the other.
//   - concurrency/volumes: A plugin is used from several goroutines at a time: several volumes of one pod are set up and torn down at once.
//   - concurrency/questions: A plugin answers questions while its volumes are set up and torn down.
//   - hostility/names: A volume name or pod UID that is no name of one directory entry is refused before anything is touched.
//   - hostility/odd-names: Every name that one directory entry can have works, or is refused by NewMounter.
//   - hostility/link-as-volume: A link at the place of the volume is not followed: nothing outside is changed, whether SetUp and TearDown succeed or not.
//   - hostility/link-between-calls: A link that is put in the place of the volume between two calls, at whichever call, is not followed: nothing outside is changed, and no mount is left there.
//   - hostility/links-inside: A link that a pod has made in its volume is not followed by SetUp, TearDown or GetMetrics.
//   - hostility/canary: Secret material never reaches an error, a log, the standard output, an event, a record, a name, the text of a call or a file outside the volume, whichever call fails. (on the fake only)
//   - ownership/fsgroup: After SetUp with an fsGroup, all files of a volume that is Managed belong to it: it may read them and, unless the volume is read-only, write them, and directories pass it on; another SetUp leaves that so. Links are not followed.
//   - ownership/unmanaged: An fsGroup changes nothing outside the node's own directories for a volume that is not Managed.
//   - ownership/progress: Progress is told by one goroutine at a time, and never after SetUp has returned; it says what is done in one line, Done never goes back, and where Total is known Done ends there.
//   - metrics/sane: GetMetrics of a volume that is set up returns numbers that fit together, or ErrMetricsUnsupported.
//   - metrics/not-set-up: GetMetrics of a volume that is not set up is an error, never the numbers of what is there instead, and changes nothing.
//   - metrics/bounded: GetMetrics returns when its context ends. (on the fake only)
//   - device/mount: MountDevice and UnmountDevice are idempotent: mounted already and not mounted at all are success, and UnmountDevice leaves neither mount nor mount point. (of every DeviceMountableVolumePlugin)
//   - device/path: GetDeviceMountPath does no I/O, is the same in every process, and leads to a place of the plugin's own. (of every DeviceMountableVolumePlugin)
//   - device/refs: GetDeviceMountRefs finds the pods' mounts of a device from the mount table, and none when they are gone. (of every DeviceMountableVolumePlugin)
//   - attach/idempotent: Attach and Detach are idempotent: attached already is success with the same path, detached already is success. (of every AttachableVolumePlugin)
//   - block/idempotent: The calls of a block volume are idempotent, give the same paths again, and leave nothing once they are undone. (of every BlockVolumePlugin)
//   - storage/expand: ExpandVolumeDevice grows the storage to at least the new size and returns its actual size, and repeating it is harmless. (of every ExpandableVolumePlugin)
//   - storage/node-expand: NodeExpand of a volume that is set up grows its file system, and repeating it is harmless. (of every NodeExpandableVolumePlugin)
//   - recycle/empties: Recycle removes everything below the volume and never a step outside it, and may be repeated. (of every RecyclableVolumePlugin)
//   - recycle/released: Recycle removes nothing where the host's ReleaseVerifier says that the data must not be destroyed, and keeps its reason. (of every RecyclableVolumePlugin)
//   - recycle/faults: Whichever call fails during Recycle, the error keeps its cause, and another Recycle empties the volume and leaves no mount. (of every RecyclableVolumePlugin)
//   - recycle/crash: At whichever call the process dies during Recycle, Recycle of a new process empties the volume and leaves no mount. (of every RecyclableVolumePlugin)
//   - recycle/cancel: When the context ends before Recycle, during it or while calls hang, it returns half a minute later at the latest with the cause, and another Recycle empties the volume. (of every RecyclableVolumePlugin)
//   - provision/made: Provision makes storage that the plugin supports and mounts, of at least the size and under the name that was asked for; repeating it, also by a new process, returns the same with its data. (of every ProvisionableVolumePlugin)
//   - provision/refused: NewProvisioner refuses parameters that it does not know. (on the fake only; of every ProvisionableVolumePlugin)
//   - provision/faults: Whichever call fails during Provision, the error keeps its cause, and another Provision makes the storage; no more is made than Delete deletes, and no mount is left. (of every ProvisionableVolumePlugin)
//   - provision/crash: At whichever call the process dies during Provision, Provision of a new process makes the storage; no more is made than Delete deletes, and no mount is left. (of every ProvisionableVolumePlugin)
//   - provision/cancel: When the context ends before Provision, during it or while calls hang, it returns half a minute later at the latest with the cause, and another Provision makes the storage. (of every ProvisionableVolumePlugin)
//   - provision/same-claim: Provision for one claim may be called several times at once, also by a controller of another node: at least one call succeeds, what succeeds returns the same storage, and no more is made than Delete deletes. (of every ProvisionableVolumePlugin)
//   - provision/several-claims: Several claims are provisioned and deleted at once; each has storage of its own, and the deletion of one leaves the others. (of every ProvisionableVolumePlugin)
//   - delete/provisioned: Delete deletes what Provision has made and nothing beside it; deleting what is gone, also by a new process, succeeds and deletes nothing. (of every DeletableVolumePlugin and ProvisionableVolumePlugin)
//   - delete/released: Delete deletes nothing where the host's ReleaseVerifier says that the data must not be destroyed, and keeps its reason. (of every DeletableVolumePlugin and ProvisionableVolumePlugin)
//   - delete/given: Delete of a volume that another provisioner has made either refuses it, which leaves all its data, or deletes it; it never touches anything outside, and may be repeated. (of every DeletableVolumePlugin)
//   - delete/faults: Whichever call fails during Delete, the error keeps its cause, and another Delete deletes the rest, nothing of others, and leaves no mount. (of every DeletableVolumePlugin and ProvisionableVolumePlugin)
//   - delete/crash: At whichever call the process dies during Delete, Delete of a new process deletes the rest, nothing of others, and leaves no mount. (of every DeletableVolumePlugin and ProvisionableVolumePlugin)
//   - delete/cancel: When the context ends before Delete, during it or while calls hang, it returns half a minute later at the latest with the cause, and another Delete deletes the rest. (of every DeletableVolumePlugin and ProvisionableVolumePlugin)
package volumetest
