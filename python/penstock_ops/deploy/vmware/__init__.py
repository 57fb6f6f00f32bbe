"""Files for a deployment in virtual machines of VMware ESX with passed-through GPUs."""
