// Package volumemanager is a node's volume manager: it sets the volumes of pods
// up, keeps a record of each below the root directory, and tears them down
// again.
//
// A [Manager] owns its root directory while [Manager.Run] runs: a lock below
// it keeps every other manager out. For each volume of a pod the manager
// resolves the claim, if there is one, to its PersistentVolume, finds the
// plugin, writes a record and syncs it, and only then lets the plugin act. The
// record goes after the volume's directory is gone. So whatever crashes when,
// the next start knows what may be mounted and how to undo it.
//
// Volumes of one pod are worked on side by side, one operation at a time for
// each volume, and none waits for another: a server that does not answer
// delays its own volume only.
//
// A device that its plugin mounts once per node is mounted before the first of
// its pods' volumes and unmounted after the last, by the records of these
// alone. A volume that must be attached waits until the node's status lists it
// in use and it is reported attached: see [Manager.VolumesInUse],
// [Manager.ReportedInUse] and [Manager.SetVolumesAttached].
//
// # Into the container
//
// [Manager.ContainerMounts] says what a runtime must bind into one container, and how;
// package containermounts finds it out, binds sub-paths, and has the words of OCI, CRI
// and docker for it. The tear-down of a volume unbinds its sub-paths first.
//
// # The root directory
//
// The root directory has the kubelet's layout (pods/, plugins/) plus podvol/,
// which is the manager's own:
//
//	podvol/lock        held while a manager runs; names its holder
//	podvol/records     the journal of the volumes' records
//	podvol/records.*   its proof, and copies of damaged ones; see [DamagedError]
//	podvol/claims/     persistentvolume's claims and volumes, where a program binds them
//	podvol/token.key   the key of objects/localtoken, where a program issues tokens
//
// # What the kubelet does and this does not
//
// Held against the kubelet of Kubernetes 1.37. Nothing that a pod can ask of a
// volume is passed over in silence: what is not done is refused, or the pod gets an
// event.
//
// Refused, with a *volume.UnsupportedError that says why and what to use instead
// where nothing else is named, unless a plugin of the caller's own does it:
//
//   - csi, and the cloud disks and portworxVolume that Kubernetes hands to CSI
//     drivers (awsElasticBlockStore, azureDisk, azureFile, cinder,
//     gcePersistentDisk, vsphereVolume): there is no CSI plugin here, so no driver
//     registration, no CSINode with its limits of attachments, no volume health
//     (healthStatus of claims), no republishing, no secrets for drivers.
//   - iscsi and fc; flexVolume; image; gitRepo, which Kubernetes has disabled; and
//     what it has no code for any more (cephfs, rbd, glusterfs, …).
//   - podCertificate in a projected volume.
//   - volumeMode Block where the plugin has no devices; mountOptions and their
//     older annotation where it takes none: a *volume.InvalidSpecError.
//   - recursiveReadOnly: Enabled, bindMountOptions and idmapped mounts where the
//     container runtime is not known to do them (containermounts.RuntimeFeatures).
//   - fileKeyRef, an environment variable from a file in an emptyDir
//     (containerenv.ErrEnvFile).
//   - dataSource and dataSourceRef of a claim whose class is not an external
//     provisioner's, and larger storage requests where the plugin cannot grow
//     volumes: events and conditions of package persistentvolume.
//
// Told by an event, and otherwise as if it had not been asked for:
//
//   - emptyDir.sizeLimit on disk (SizeLimitNotEnforced): nobody is evicted, and no
//     project quotas are set. In memory and huge pages it is a hard limit.
//   - fsGroup on shares (FSGroupNotApplied). The kubelet does not apply it to them
//     either, and says nothing. Nor has hostPath one, in both.
//
// Not done, and not a field of a volume:
//
//   - Eviction, and the accounting for it: requests and limits of
//     ephemeral-storage hold nobody back. [Manager.Metrics] measures each volume;
//     summing up, and logs and writable layers of containers, are the agent's.
//   - Growing a file system on the node. Of the plugins here none needs it (shares
//     and directories have the size of what they lie on). Where a plugin of the
//     caller's own is a volume.NodeExpandableVolumePlugin, the claim stays at
//     NodeResizePending: the manager does not call NodeExpand.
//   - Attaching. The manager reports volumes in use and waits for what is
//     attached; a controller attaches, as with enableControllerAttachDetach.
//   - Static and mirror pods: a pod is a pod. What a static pod may not refer to in
//     Kubernetes (secrets, config maps, claims), it gets here.
//   - What admission adds to pods in a cluster: without an API server nobody mounts a
//     token for automountServiceAccountToken, unless the agent has the volume added
//     by localtoken.WithServiceAccountVolume (package volume/objects/localtoken).
//   - What is around volumes in a container: /etc/hosts, termination messages,
//     devices of device plugins and of resource claims, and the user namespace of
//     hostUsers: false: its mappings are the caller's (containermounts.Options). So are
//     the groups of a pod (supplementalGroups); those that its PersistentVolumes
//     add are in [Manager.ExtraSupplementalGroups].
//   - Metrics and events in the API: [Manager.Subscribe] and [Config].Events have
//     them. The example command podvol shows the former under the kubelet's names
//     (kubelet_volume_stats_*, storage_operation_duration_seconds,
//     volume_manager_total_volumes, reconstruct_volume_operations_total, …),
//     without kubelet_volume_stats_health_status_abnormal, volume_manager_selinux_*
//     and the sum of all volumes in /stats/summary.
//   - Windows.
//
// Done otherwise on purpose:
//
//   - Nothing is polled. A changed ConfigMap or Secret is shown when its watch
//     tells of it, not at the next sync; there is no configMapAndSecretChangeDetectionStrategy.
//   - After a restart volumes are known from records, not rebuilt from directories
//     and mounts; those of another agent are left alone unless [Config].Adopt is
//     set. Orphaned pods' directories are not swept: fsck ([Check]) names them.
//   - An unmount is followed by rmdir, never by a recursive removal, and volumes go
//     only when their pod's containers are known to be gone.
//   - Volumes that no container uses are not mounted, as with the kubelet
//     ([StateUnused]); but a pod that is handed over without any container has all
//     of its volumes mounted. What no container uses any more, which a cluster does
//     not allow, stays mounted as it is, until the pod goes.
//   - A pod that has ended gives its volumes up when [Manager.PutPod] is told of its
//     status, as with the kubelet; its emptyDir volumes may stay until it is deleted
//     ([Config].KeepEndedPodData).
//   - A claim that is being deleted is mounted for a new pod all the same; as long
//     as that pod is there, the claim stays (pvc-protection).
//   - ReadWriteOncePod is kept to for volumes of all kinds, and a
//     PersistentVolume that offers nothing but ReadOnlyMany cannot be written to.
//   - A sub-path that is missing in a ConfigMap or Secret is an error, not a new
//     directory; an expression that expands to nothing is refused.
//   - tmpfs has noswap where the kernel can, also for emptyDir; where it cannot,
//     nothing warns: encrypt swap, or have none.
//   - A mount helper runs in a systemd scope only if it leaves a daemon behind, as
//     FUSE's do; all else is mounted by system calls.
//   - Fields of features that are alpha (emptyDir.mode, bindMountOptions,
//     defaultUser and user of files) need no feature gate.
package volumemanager
