# Homework 4: train VGG in half precision (low memory)
# TABS, as the template of the course has them
import torch
import torch.nn as nn
import torchvision
import torchvision.transforms as transforms

def train_epoch(net, loader, opt, loss_fn):
	net.train()
	running = 0.0
	for i, (x, y) in enumerate(loader):
		x = x.cuda().half()
		y = y.cuda()
		opt.zero_grad()
		out = net(x)
		loss = loss_fn(out.float(), y)
		loss.backward()
		opt.step()
		running += loss.item()
	return running / len(loader)

def main():
	tf = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor()])
	ds = torchvision.datasets.CIFAR100(root='./data', train=True, download=True, transform=tf)
	loader = torch.utils.data.DataLoader(ds, batch_size=128, shuffle=True, num_workers=2)
	net = torchvision.models.vgg11_bn(num_classes=100)
	net = net.cuda().half()
	for m in net.modules():
		if isinstance(m, nn.BatchNorm2d):
			m.float()
	opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
	for ep in range(20):
		l = train_epoch(net, loader, opt, nn.CrossEntropyLoss())
		print('epoch', ep, 'loss', l)
	torch.save(net.state_dict(), 'vgg_half.pt')

if __name__ == '__main__':
	main()
