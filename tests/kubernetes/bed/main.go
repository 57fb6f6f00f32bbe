// An etcd and a Kubernetes API server in one binary: the test bed of tests/kubernetes.
package main

import (
	"fmt"
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	command := ""
	if len(os.Args) > 1 {
		command = os.Args[1]
		os.Args = append([]string{command}, os.Args[2:]...)
	}
	switch command {
	case "etcd":
		etcdmain.Main(os.Args)
	case "kube-apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	default:
		fmt.Fprintln(os.Stderr, "etcd or kube-apiserver is expected")
		os.Exit(2)
	}
}
