# Kaggle 2019 style: one process, all cards
import torch, torch.nn as nn, pandas as pd
from torch.utils.data import DataLoader, Dataset
from torchvision import models, transforms
from PIL import Image

class Dogs(Dataset):
    def __init__(self, csv, root, tfm): self.df=pd.read_csv(csv); self.root=root; self.tfm=tfm
    def __len__(self): return len(self.df)
    def __getitem__(self,i):
        r=self.df.iloc[i]
        return self.tfm(Image.open(f'{self.root}/{r.id}.jpg').convert('RGB')), int(r.label)

device=torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')
tfm=transforms.Compose([transforms.Resize((224,224)),transforms.ToTensor()])
dl=DataLoader(Dogs('train.csv','train',tfm),batch_size=96,shuffle=True,num_workers=4)
model=models.densenet121(weights='IMAGENET1K_V1')
model.classifier=nn.Linear(1024,120)
if torch.cuda.device_count()>1:
    print('using',torch.cuda.device_count(),'cards')
    model=nn.DataParallel(model)
model=model.to(device)
opt=torch.optim.Adam(model.parameters(),lr=3e-4)
crit=nn.CrossEntropyLoss().cuda(0)
for ep in range(6):
    for x,y in dl:
        x,y=x.to(device),y.to(device)
        opt.zero_grad()
        l=crit(model(x),y)
        l.backward()
        opt.step()
    print(ep,l.item())
    torch.save(model.state_dict(),'dense_%d.pth'%ep)
