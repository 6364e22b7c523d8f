// Command e2e runs Kubernetes' own end-to-end tests against nodes of podvol: a control
// plane and two nodes, each with a container runtime of its own. It needs root, Linux and
// Go, and busybox-static of Debian for the images; testdata/kubernetes/build builds all
// other programs, once.
//
//	go run ./util/testenv/kubecluster/e2e                        # the conformance tests of sig-storage
//	go run ./util/testenv/kubecluster/e2e --focus 'ConfigMap'    # some of them
//	go run ./util/testenv/kubecluster/e2e --part 3/12            # the third of twelve parts
//	go run ./util/testenv/kubecluster/e2e --node kubelet         # the same with Kubernetes' kubelet
//	go run ./util/testenv/kubecluster/e2e -- kubectl get nodes   # something else in that cluster
//
// With --csi nodes take CSI drivers, and there are the images of those that tests deploy:
//
//	go run ./util/testenv/kubecluster/e2e --csi --labels sig-storage --focus 'csi-hostpath|CSI Mock'
//
// This measures how long pods with ten mixes of volumes take on a kubelet and on a node
// of podvol, in one cluster:
//
//	go run ./util/testenv/kubecluster/e2e --node kubelet,virtualkubelet --timings 10
//
// These have a node change hands from a kubelet to podvol and back, and have many pods come
// and go on one node while the API server is busy. They fail where containers do not go on,
// where anything is mounted twice or unmounted too early, and where anything is left:
//
//	go run ./util/testenv/kubecluster/e2e --handover
//	go run ./util/testenv/kubecluster/e2e --pods 100
//
// This runs the manifests of examples/virtualkubelet and of local discovery on a kubelet's
// node, in containers:
//
//	go run ./util/testenv/kubecluster/e2e --daemonsets
//
// It prints each test that has passed, failed or was skipped, with the reason, and fails
// where one has failed, or where mounts, directories, containers or processes of the tests'
// pods are left on a node. The logs are kept then. failing.txt lists the tests that are known
// to fail, and why: one of those that passes is a failure, too.
//
// # Namespaces
//
// Everything runs in namespaces of processes, mounts and networks that are made for the
// run, and ends with this command, however that ends. The machine's file systems are
// read-only there, but for directories of the run's own (/var, /tmp, /run, /mnt). Each
// node has a namespace of processes and of mounts within, so that process 1 of a node is
// the node's own: tests enter its mounts.
//
//	e2e                the command; it builds, and shows the results
//	└ init             process 1 of the run
//	  └ run            control plane, network, tests
//	    └ node-init    process 1 of a node, in its cgroup
//	      └ node       containerd, kubelet
//
// The API server listens at 10.0.0.1 of the loopback interface, nodes at 10.77.0.1 and
// above, and pods are reached over one veth each. Nothing else can be reached.
//
// # Images
//
// There is no registry. The images that tests ask for are made from programs built
// here, busybox and a few programs of the machine, under the names that the tests use; see
// images.go. A test that needs another image fails.
//
// Of CSI's images the attacher, the provisioner and the resizer are Kubernetes' own. Package
// util/testenv/csiparts stands for csi-driver-host-path, node-driver-registrar and
// livenessprobe. The snapshotter's image only waits, so that tests of snapshots fail.
package main
